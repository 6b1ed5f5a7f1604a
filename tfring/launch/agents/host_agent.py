"""Runs the ranks of one host for the launcher: the one process beside them that each host has.

The launcher starts it on its own host directly, on others through ssh. What it reads and writes is
said in protocol.py. When the connection ends, or the launcher on another host gives no sign of life
for as long as its lease is, the ranks get SIGTERM and, after the grace, SIGKILL. When a rank has
ended, the agent kills what the rank has left behind. If the agent is killed, the kernel kills its
ranks, and the guardian or the launcher what they leave.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
from typing import IO, Any

from tfring.job.environments.elastic import make_memory, memory_variables
from tfring.job.handshake.descriptors import raise_descriptor_limit
from tfring.launch.agents import protocol
from tfring.launch.agents.addresses import open_rendezvous
from tfring.launch.agents.local_rank import LocalRank
from tfring.launch.agents.processes import kill_orphans, take_orphans
from tfring.launch.agents.protocol import FRAME, GREETING, KEEPALIVE_SECONDS

_CHUNK = 1 << 16
# While more bytes wait for the connection, the ranks' output stays in their pipes.
_MOST_WAITING = 1 << 20
# The agent waits this long for the end of what a rank has left, which the kernel may hold up.
_CLEAR_SECONDS = 5.0
_POLL_SECONDS = 0.05
_GUARDIAN_SECONDS = 0.02


class HostAgent:
    """Starts and ends ranks as the launcher says, and passes their output on. Used by one thread.

    It ends when the process `parent` does; 0: it has none on this host.
    """

    def __init__(self, parent: int) -> None:
        self._parent = parent
        self._ranks: dict[int, LocalRank] = {}
        self._clearing = False  # a rank has ended, and what it has left may still run
        self._input = b""
        self._out = bytearray(GREETING)
        self._reading = True  # the output of ranks
        self._connected = True
        self._lease = self._grace = 0.0
        self._heard = self._looked = self._said = time.monotonic()
        self._kill_at: float | None = None
        self._memory: tuple[int, ...] = ()  # in which workers of an elastic job keep commits
        self._selector = selectors.DefaultSelector()
        self._wake = protocol.set_up_signals(parent)
        os.set_blocking(0, False)
        os.set_blocking(1, False)
        self._selector.register(self._wake, selectors.EVENT_READ, "wake")
        self._selector.register(0, selectors.EVENT_READ, "commands")

    def run(self) -> None:
        """Works until the connection has ended and every rank after it."""
        while self._connected or self._ranks or self._clearing:
            self._update()
            for key, _ in self._selector.select(self._timeout()):
                if key.data == "wake":
                    self._wake_up()
                elif key.data == "commands":
                    self._read_commands()
                elif key.data == "out":
                    self._flush()
                else:
                    self._read_output(*key.data)
            self._check_time()
            if self._clearing:
                self._clear()

    def _timeout(self) -> float | None:
        if self._clearing:
            return _POLL_SECONDS
        if self._lease and self._connected:
            return KEEPALIVE_SECONDS
        return None if self._kill_at is None else max(0.0, self._kill_at - time.monotonic())

    def _wake_up(self) -> None:
        """Looks what a signal was about."""
        os.read(self._wake, 4096)
        for one in self._ranks.values():
            self._clearing = one.poll() or self._clearing
        if self._parent and os.getppid() != self._parent:
            self._disconnect(self._grace)

    def _check_time(self) -> None:
        """Gives a sign of life, and ends what has to end by now."""
        now = time.monotonic()
        if now - self._looked > 2 * KEEPALIVE_SECONDS:
            self._heard = now  # this process itself stood still, and has not read what came
        self._looked = now
        if self._lease and self._connected:
            if now - self._heard > self._lease:
                self._disconnect(self._grace)
            elif not self._out and now - self._said >= KEEPALIVE_SECONDS / 2:
                self._said = now
                self._send(b"k", 0, b"")
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            self._signal_all(signal.SIGKILL)

    # The connection.

    def _update(self) -> None:
        """Waits for space on the connection only where something waits, and the other way round."""
        self._watch(1, bool(self._out), selectors.EVENT_WRITE, "out")
        reading = len(self._out) < _MOST_WAITING
        if reading != self._reading:
            self._reading = reading
            for rank in self._ranks:
                self._watch_output(rank)

    def _watch_output(self, rank: int) -> None:
        for letter, pipe in self._ranks[rank].streams():
            if not pipe.closed:
                fd = pipe.fileno()
                self._watch(fd, self._reading, selectors.EVENT_READ, (letter, rank, pipe))

    def _watch(self, fd: int, on: bool, events: int, data: object) -> None:
        watched = fd in self._selector.get_map()
        if on and not watched:
            self._selector.register(fd, events, data)
        elif watched and not on:
            self._selector.unregister(fd)

    def _read_commands(self) -> None:
        if not self._connected:
            return
        try:
            chunk = os.read(0, _CHUNK)
        except BlockingIOError:
            return
        self._heard = time.monotonic()
        self._input += chunk
        *lines, self._input = self._input.split(b"\n")
        for line in lines:
            self._execute(*line.split(b" ", 2))
        if not chunk:
            self._disconnect(self._grace)

    def _execute(self, word: bytes, number: bytes, rest: bytes = b"") -> None:
        rank = int(number)
        if word == b"start":
            self._start(rank, json.loads(rest))
        elif word == b"signal" and rank in self._ranks:
            self._ranks[rank].signal(int(rest))
        elif word == b"lease":
            self._lease = float(rest)
        elif word == b"grace":
            self._grace = float(rest)
        elif word == b"end":
            self._disconnect(0.0)

    def _send(self, letter: bytes, rank: int, data: bytes) -> None:
        if self._connected:
            self._out += FRAME.pack(letter, rank, len(data)) + data

    def _flush(self) -> None:
        try:
            del self._out[: os.write(1, self._out)]
        except BlockingIOError:
            return
        except OSError:
            self._out.clear()  # the launcher is gone; the end of our input follows

    def _disconnect(self, grace: float) -> None:
        """Ends all ranks: the launcher wants that, or is gone, or the connection to it.

        They get `grace` seconds between SIGTERM and SIGKILL.
        """
        if not self._connected:
            return
        self._connected = False
        self._out.clear()
        self._selector.unregister(0)
        self._kill_at = time.monotonic() + grace
        self._signal_all(signal.SIGTERM)
        self._signal_all(signal.SIGCONT)  # a rank that stands still cannot end

    # Ranks.

    def _signal_all(self, number: int) -> None:
        for one in self._ranks.values():
            one.signal(number)

    def _start(self, rank: int, job: dict[str, Any]) -> None:
        listener = None
        try:
            listener = self._listen(rank, job)
        except (OSError, ValueError) as error:  # the second: of an impossible range, or name
            self._refuse(rank, 1, f"rank {rank} has nowhere to listen: {error}")
            return
        try:
            memory = self._memory_for(job)
            sockets = () if listener is None else (listener.fileno(),)
            one = self._ranks[rank] = LocalRank(job, (*sockets, *memory))
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            code = 127 if isinstance(error, FileNotFoundError) else 126
            self._refuse(rank, code, f"cannot start {job['argv'][0]}: {error}")
            return
        finally:
            if listener is not None:
                listener.close()
        self._watch_output(rank)
        self._send(b"s", rank, json.dumps(one.facts).encode())

    def _memory_for(self, job: dict[str, Any]) -> tuple[int, ...]:
        """Lets a worker of an elastic job inherit this host's memory for commits; returns that."""
        if "TFRING_X_ELASTIC_WORKER" not in job["env"]:
            return ()
        with contextlib.suppress(OSError):  # without it commits are not copied
            self._memory = self._memory or make_memory()
        job["env"].update(memory_variables(self._memory))
        return self._memory

    def _listen(self, rank: int, job: dict[str, Any]) -> socket.socket | None:
        """For rank 0, opens the socket where ranks meet, and says to the launcher where it is."""
        if job.get("listen") is None:
            return None
        environ = {**os.environ, **job["env"]}
        listener = open_rendezvous(job["listen"]["interface"], job["listen"]["towards"], environ)
        address, port = listener.getsockname()[:2]
        self._send(b"s", rank, json.dumps({"rendezvous": [address, port]}).encode())
        job["env"]["TFRING_RENDEZVOUS_ADDR"] = address
        job["env"]["TFRING_RENDEZVOUS_PORT"] = str(port)
        job["env"]["TFRING_X_RENDEZVOUS_FD"] = str(listener.fileno())
        return listener

    def _refuse(self, rank: int, code: int, why: str) -> None:
        """Tells that a rank could not be started, with an exit code as of a shell."""
        text = f"tfring run: {why}\n"  # names may be no UTF-8
        self._send(b"e", rank, text.encode(errors="surrogateescape"))
        self._tell_end(rank, {"code": code, "oom": ""})

    def _read_output(self, letter: bytes, rank: int, pipe: IO[bytes]) -> bool:
        """Passes some output on; returns whether there may be more of it now."""
        if pipe.closed:  # since it was found ready
            return False
        try:
            data = os.read(pipe.fileno(), _CHUNK)
        except BlockingIOError:
            return False
        if data:
            self._send(letter, rank, data)
        else:
            self._close(pipe)
        return bool(data)

    def _clear(self) -> None:
        """Kills what ranks have left behind; tells of their end when nothing is left."""
        self._clearing = kill_orphans([one.pid for one in self._ranks.values() if one.code is None])
        now = time.monotonic()
        for rank, one in list(self._ranks.items()):
            cleared = not self._clearing or now >= one.ended_at + _CLEAR_SECONDS
            if one.code is not None and cleared:
                self._drain(rank, one)
                del self._ranks[rank]
                self._tell_end(rank, one.facts)

    def _drain(self, rank: int, one: LocalRank) -> None:
        for letter, pipe in one.streams():
            while self._read_output(letter, rank, pipe):
                pass
            self._close(pipe)

    def _close(self, pipe: IO[bytes]) -> None:
        if not pipe.closed:
            self._watch(pipe.fileno(), False, 0, None)
            pipe.close()

    def _tell_end(self, rank: int, facts: dict[str, Any]) -> None:
        self._send(b"x", rank, json.dumps(facts).encode())


def _fork_agent(parent: int) -> int:
    """Forks. The child becomes the agent, and gets the guardian's process id.

    The parent is the guardian. When the agent has ended, it kills what is left below it, and ends.
    If its own parent ends first (0: it has none on this host), the guardian ends at once, and the
    agent then ends its ranks.
    """
    guardian = os.getpid()
    agent = os.fork()
    if agent == 0:
        return guardian
    take_orphans()
    wake = protocol.set_up_signals(parent)
    while True:
        if parent and os.getppid() != parent:
            sys.exit(0)
        done, status = os.waitpid(agent, os.WNOHANG)
        if done:
            break
        select.select([wake], [], [])
        os.read(wake, 4096)
    while kill_orphans(()):
        time.sleep(_GUARDIAN_SECONDS)
    code = os.waitstatus_to_exitcode(status)
    sys.exit(code if code >= 0 else 128 - code)


def main(parent: int, guarded: int) -> None:
    """Works for one launcher; see protocol.agent_command for the arguments."""
    raise_descriptor_limit()
    if guarded:
        parent = _fork_agent(parent)
    take_orphans()
    HostAgent(parent).run()
