"""A host from the launcher's side: one connection to the agent that runs its ranks."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import time
from typing import Any

from tfring.launch.agents.processes import kill_marked
from tfring.launch.agents.protocol import FRAME, GREETING, KEEPALIVE_SECONDS, agent_command
from tfring.launch.agents.shells import RemoteShell, Tunnel, Tunnels

# After this many seconds without a sign of life the launcher regards a host as lost, and the agent
# there the launcher. Networks and virtual machines pause for some seconds now and then, and the
# connections of a job survive that. In an elastic job a lost host costs less than the wait for it.
AGENT_TIMEOUT_SECONDS = 60.0
ELASTIC_TIMEOUT_SECONDS = 5.0
# The launcher notices first that a host is silent, and says so.
SSH_LATER_SECONDS = 4.0
_CHUNK = 1 << 16
_NAMES = {b"o": "stdout", b"e": "stderr"}
# What a scheduler sends to all processes of a job must not end ssh before the ranks behind it have
# written a checkpoint. ssh leaves signals alone that are ignored when it starts; srun does not.
_SHELTER = ("sh", "-c", 'trap "" HUP INT QUIT TERM; exec "$@"', "sh")
# What the login shell prints before the greeting is noise; the end of it is kept, in bytes.
_MOST_NOISE = 4096
# How long the agent of this host may take to end after all its ranks have.
_END_SECONDS = 5.0
_FLUSH_SECONDS = 1.0
# In the environment of an agent and of all that it starts, with a value of the agent's own.
_MARK = "TFRING_X_AGENT"
# What ssh ends with where it loses a host, and what stands for an exit code that is not known.
LOST_CODE = 255


class Host:
    """One connection to the agent of one host. Its descriptors never block.

    The owner watches `process.stdout` and `process.stderr`, and `process.stdin` for writing while
    wants_to_write(); it calls tick() at least once a second, and close() at the end, upon which the
    ranks there end. Used by one thread.

    The `shell` starts the agent on the host `name`, or reaches it; None: it is this host. Each end
    regards the other as lost after `lease` seconds without a sign of life; with 0 only when the
    connection ends. When this process is gone, ranks get `grace` seconds between SIGTERM and
    SIGKILL.
    """

    def __init__(
        self, name: str, shell: RemoteShell | Tunnels | None, lease: float, grace: float
    ) -> None:
        self.name = name
        self.local = shell is None
        self._mark = secrets.token_hex(8)
        self._program, self.process = _connect(name, shell, self._mark)
        self._grace = grace
        self.ranks: list[int] = []
        self.facts: dict[int, dict[str, Any]] = {}  # what is known of each rank: see protocol.py
        self.noise = b""
        self.ended = False  # no more frames will come
        self.greeted = False
        self.silent = False  # given up because it gave no sign of life
        self.lease = 0.0 if self.local else lease
        self._heard = self._looked = time.monotonic()
        self._input = b""
        self._out = bytearray()
        for fd in self.fds():
            os.set_blocking(fd, False)
        self._send("grace", 0, f"{grace:g}".encode())
        self._send("lease", 0, f"{self.lease:g}".encode())

    def fds(self) -> tuple[int, int, int]:
        """Returns the descriptors to write to, to read frames from, and to read ssh's errors."""
        pipes = (self.process.stdin, self.process.stdout, self.process.stderr)
        first, second, third = (pipe.fileno() for pipe in pipes if pipe is not None)
        return first, second, third

    def start(self, rank: int, job: bytes) -> None:
        """Has a rank started; the job is JSON: see protocol.py."""
        self.ranks.append(rank)
        self.facts.pop(rank, None)  # of one that ran before
        self._send("start", rank, job)

    def signal(self, rank: int, number: int) -> None:
        """Passes a signal on to a rank."""
        self._send("signal", rank, b"%d" % number)
        self.flush()

    def end_ranks(self) -> None:
        """Has all ranks killed; what becomes of them is not heard any more."""
        self._send("end", 0)
        self.flush()

    def hold(self) -> None:
        """Tells the agent that this process will stand still, until tick() is called again."""
        if self.lease and not self.ended:
            self._send("lease", 0, b"0")
            self._flush_for(_FLUSH_SECONDS)

    def tick(self, now: float) -> bool:
        """Gives a sign of life; returns whether the host has just been given up for lack of one."""
        if not self.lease or self.ended:
            return False
        if now - self._looked > 2 * KEEPALIVE_SECONDS:
            self._heard = now  # this process stood still, and has not read what came
        if now - self._looked >= KEEPALIVE_SECONDS / 2:
            self._looked = now
            if not self._out:
                self._send("lease", 0, f"{self.lease:g}".encode())
        self.flush()
        if self.greeted and now - self._heard > self.lease:
            self.silent = self.ended = True
            self.process.kill()
            return True
        return False

    def _send(self, word: str, rank: int, rest: bytes = b"") -> None:
        self._out += f"{word} {rank} ".encode() + rest + b"\n"

    def wants_to_write(self) -> bool:
        """Whether something waits for the connection to take it."""
        return bool(self._out)

    def flush(self) -> None:
        """Writes what the connection takes now."""
        try:
            while self._out:
                del self._out[: os.write(self.fds()[0], self._out)]
        except BlockingIOError:
            return
        except OSError:
            self._out.clear()  # the other end has ended; poll() says so

    def _flush_for(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        self.flush()
        while self._out and time.monotonic() < deadline:
            time.sleep(0.01)
            self.flush()

    def read(self, fd: int) -> list[tuple[int, str, bytes]] | None:
        """Reads what has come from one of fds(); None at the end of the stream.

        Each piece has the rank, ``stdout`` or ``stderr``, and data.
        """
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return []
        if not data:
            self.ended = self.ended or fd == self.fds()[1]
            return None
        if fd == self.fds()[2]:
            return [(rank, "stderr", data) for rank in self.ranks[:1]]
        self._heard = time.monotonic()
        self._input += data
        if not self.greeted:
            self.noise, found, rest = self._input.partition(GREETING)
            if not found:
                self._input = self._input[-_MOST_NOISE:]
                return []
            self.greeted, self._input = True, rest
        return self._frames()

    def _frames(self) -> list[tuple[int, str, bytes]]:
        found, at = [], 0
        while len(self._input) - at >= FRAME.size:
            letter, rank, length = FRAME.unpack_from(self._input, at)
            end = at + FRAME.size + length
            if len(self._input) < end:
                break
            data = self._input[at + FRAME.size : end]
            at = end
            if letter in _NAMES:
                found.append((rank, _NAMES[letter], data))
            elif letter in (b"s", b"x"):
                self.facts.setdefault(rank, {}).update(json.loads(data))
        self._input = self._input[at:]
        return found

    def poll(self, rank: int) -> int | None:
        """Returns how a rank ended, as subprocess does; LOST_CODE if nobody has seen it."""
        if "code" in self.facts.get(rank, {}):
            return int(self.facts[rank]["code"])
        if self.silent:
            return LOST_CODE
        code = self._agent_code() if self.ended else None
        return None if code is None else code if code > 0 else LOST_CODE

    def _agent_code(self) -> int | None:
        """Returns how the agent, or what reaches it, ended; kills what an agent here has left."""
        code = self.process.poll()
        if code and self.local and self._mark:
            running = [facts["pid"] for facts in self.facts.values() if "code" not in facts]
            kill_marked(f"{_MARK}={self._mark}", running)
            self._mark = ""
        return code

    def lost(self, rank: int) -> str:
        """Returns why the end of a rank is unknown; "" if it is known."""
        if "code" in self.facts.get(rank, {}):
            return ""
        if self.silent:
            return f"its host {self.name} gave no sign of life for {self.lease:g} s"
        code = self.process.returncode
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        if self.local:
            return f"the agent of its host ended with {how}"
        if code == LOST_CODE:
            return f"{self._program} could not reach the host, or lost it"
        return f"{self._program} to its host {self.name} ended with {how}"

    def close(self) -> None:
        """Ends the connection, upon which the ranks there end; wait() says when, on this host."""
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()
        self.process.poll()

    def wait(self) -> None:
        """Waits for the end of the agent of this host, after close()."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(self._grace + _END_SECONDS if self.local else 0.0)
        self._agent_code()


def _connect(name: str, shell: RemoteShell | Tunnels | None, mark: str) -> tuple[str, Tunnel]:
    """Returns the connection to the agent of a host, and the name of what made it."""
    if shell is None:
        command = agent_command(os.getpid(), guarded=False)
        program = command[0]
    elif not isinstance(shell, RemoteShell):
        return shell.engine, shell.open(name)
    else:
        command = [*_SHELTER, *shell.command(name, agent_command(0, guarded=True))]
        program = shell.program
        if shutil.which(program) is None:
            raise FileNotFoundError(f"there is no program {program}. Install it on this host")
    process = subprocess.Popen(
        command,
        env={**os.environ, _MARK: mark},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
    )
    return program, process
