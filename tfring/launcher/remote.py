"""Another host from the launcher's side: one ssh, behind which the agents of its ranks run."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfring.launcher.host_agent import FRAME, GREETING
from tfring.ssh.options import SshOptions

_HOST_AGENT = str(Path(__file__).with_name("host_agent.py"))
_CHUNK = 1 << 16
_NAMES = {b"o": "stdout", b"e": "stderr"}
# Until the greeting has come, whatever the login shell prints is noise; of so much a part is kept.
_MOST_NOISE = 4096


class Host:
    """One connection to one other host. Its descriptors never block.

    The owner watches `process.stdout` and `process.stderr`, and `process.stdin` for writing while
    wants_to_write(); it calls close() at the end, upon which the ranks there end. Used by one
    thread.
    """

    def __init__(self, name: str, ssh: SshOptions) -> None:
        self.name = name
        self.process = subprocess.Popen(
            ssh.command(name, [sys.executable, "-I", "-S", _HOST_AGENT]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        self.ranks: list[int] = []
        self.codes: dict[int, int] = {}
        self.noise = b""
        self.ended = False  # no more frames will come
        self._greeted = False
        self._input = b""
        self._out = bytearray()
        for fd in self.fds():
            os.set_blocking(fd, False)

    def fds(self) -> tuple[int, int, int]:
        """Returns the descriptors to write to, to read frames from, and to read errors of ssh."""
        pipes = (self.process.stdin, self.process.stdout, self.process.stderr)
        first, second, third = (pipe.fileno() for pipe in pipes if pipe is not None)
        return first, second, third

    def start(self, rank: int, job: bytes) -> None:
        """Has a rank started.

        Args:
            rank: The rank.
            job: JSON for its agent.
        """
        self.ranks.append(rank)
        self._out += b"start %d " % rank + job + b"\n"

    def signal(self, rank: int, number: int) -> None:
        """Passes a signal on to a rank."""
        self._out += b"signal %d %d\n" % (rank, number)
        self.flush()

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
            self._out.clear()  # ssh has ended; poll() says so

    def read(self, fd: int) -> list[tuple[int, str, bytes]] | None:
        """Reads what has come.

        Args:
            fd: One of fds().

        Returns:
            Rank, ``stdout`` or ``stderr``, and data of each piece; None at the end of the stream.
        """
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return []
        if not data:
            self.ended = self.ended or fd == self.fds()[1]
            return None
        if fd == self.fds()[2]:
            return [(self.ranks[0], "stderr", data)]
        self._input += data
        if not self._greeted:
            self.noise, found, rest = self._input.partition(GREETING)
            if not found:
                self._input = self._input[-_MOST_NOISE:]
                return []
            self._greeted, self._input = True, rest
        return self._frames()

    def _frames(self) -> list[tuple[int, str, bytes]]:
        found = []
        while len(self._input) >= FRAME.size:
            letter, rank, length = FRAME.unpack_from(self._input)
            if len(self._input) < FRAME.size + length:
                break
            data = self._input[FRAME.size : FRAME.size + length]
            self._input = self._input[FRAME.size + length :]
            if letter in _NAMES:
                found.append((rank, _NAMES[letter], data))
            else:
                self.codes[rank] = int(data)
        return found

    def poll(self, rank: int) -> int | None:
        """Returns how a rank ended, as subprocess does; that of ssh if that has ended."""
        if rank in self.codes:
            return self.codes[rank]
        return self.process.poll() if self.ended else None

    def close(self) -> None:
        """Ends the connection."""
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()
        self.process.poll()


@dataclass
class RemoteAgent:
    """The agent of one rank on another host."""

    host: Host
    rank: int

    @property
    def pid(self) -> int:
        """The process that stands for it here."""
        return self.host.process.pid

    def poll(self) -> int | None:
        """Returns how its rank ended; None if it has not."""
        return self.host.poll(self.rank)

    def lost(self) -> bool:
        """Whether the connection ended before the rank did."""
        return self.rank not in self.host.codes

    def signal(self, number: int) -> None:
        """Passes a signal on to the rank's process group."""
        self.host.signal(self.rank, number)

    def kill(self) -> None:
        """Gives the rank up, and with it all ranks of its host."""
        self.host.process.kill()

    def pipes(self) -> dict[str, Any]:
        """Returns nothing: the output comes through the connection."""
        return {}

    def close(self) -> None:
        """Ends the connection, for all ranks of the host."""
        self.host.close()
