"""Runs the agents of all ranks of one host behind one connection to the launcher.

The launcher runs one of these per other host, through ssh. It imports only the standard library.
Standard input has lines: ``start RANK JOB``, where JOB is what agent.py reads, and
``signal RANK N``. Standard output has a first line, `GREETING`, and then frames: a letter, the
rank, the length of the data, the data. o is output, e error output, x the end of a rank, whose data
is its exit code or minus its signal. At end of file on standard input every rank ends, as agent.py
says.
"""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import signal
import struct
import subprocess
import sys
from pathlib import Path

GREETING = b"tfring-host-agent 1\n"
FRAME = struct.Struct(">cII")

_AGENT = str(Path(__file__).with_name("agent.py"))
_CHUNK = 1 << 16
# While so much waits for the connection, the ranks' output stays in their pipes.
_MOST_WAITING = 1 << 20
_MOST_DESCRIPTORS = 65536


class HostAgent:
    """Hands commands to the agents and their output to the launcher. Used by one thread."""

    def __init__(self) -> None:
        self._agents: dict[int, subprocess.Popen[bytes]] = {}
        self._waiting: dict[int, bytearray] = {}  # for the standard input of each agent
        self._input = b""
        self._out = bytearray(GREETING)
        self._connected = True
        self._selector = selectors.DefaultSelector()
        wake, wake_write = os.pipe()
        for fd in (wake, wake_write, 1):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write)
        self._wake = wake
        self._selector.register(wake, selectors.EVENT_READ, "wake")
        self._selector.register(0, selectors.EVENT_READ, "commands")

    def run(self) -> int:
        """Works until the connection has ended and every agent after it. Returns the exit code."""
        while self._connected or self._agents:
            self._update()
            for key, _ in self._selector.select():
                if key.data == "wake":
                    os.read(self._wake, 4096)
                elif key.data == "commands":
                    self._read_commands()
                elif key.data == "out":
                    self._flush()
                else:
                    letter, rank = key.data
                    if letter == b"i":
                        self._feed(rank)
                    else:
                        self._read_output(letter, rank, key.fd)
            self._reap()
        return 0

    def _update(self) -> None:
        """Waits for space on the connection only where something waits, and the other way round."""
        self._watch(1, bool(self._out) and self._connected, selectors.EVENT_WRITE, "out")
        space = len(self._out) < _MOST_WAITING
        for rank, agent in self._agents.items():
            assert agent.stdin is not None
            if not agent.stdin.closed:
                data = self._waiting[rank]
                self._watch(agent.stdin.fileno(), bool(data), selectors.EVENT_WRITE, (b"i", rank))
            for letter, pipe in ((b"o", agent.stdout), (b"e", agent.stderr)):
                assert pipe is not None
                if not pipe.closed:
                    self._watch(pipe.fileno(), space, selectors.EVENT_READ, (letter, rank))

    def _watch(self, fd: int, on: bool, events: int, data: object) -> None:
        watched = fd in self._selector.get_map()
        if on and not watched:
            self._selector.register(fd, events, data)
        elif watched and not on:
            self._selector.unregister(fd)

    def _read_commands(self) -> None:
        chunk = os.read(0, _CHUNK)
        self._input += chunk
        *lines, self._input = self._input.split(b"\n")
        for line in lines:
            word, number, rest = line.split(b" ", 2)
            rank = int(number)
            if word == b"start":
                self._start(rank, rest + b"\n")
            elif rank in self._agents:
                self._waiting[rank] += b"signal " + rest + b"\n"
        if not chunk:
            self._connected = False
            self._out.clear()
            self._selector.unregister(0)
            for each in self._agents:
                self._close_input(each)

    def _start(self, rank: int, job: bytes) -> None:
        agent = subprocess.Popen(
            [sys.executable, "-I", "-S", _AGENT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
        )
        assert agent.stdin is not None
        os.set_blocking(agent.stdin.fileno(), False)
        self._agents[rank], self._waiting[rank] = agent, bytearray(job)

    def _feed(self, rank: int) -> None:
        data, pipe = self._waiting[rank], self._agents[rank].stdin
        assert pipe is not None
        try:
            del data[: os.write(pipe.fileno(), data)]
        except BlockingIOError:
            return
        except OSError:
            self._close_input(rank)  # the agent has ended

    def _close_input(self, rank: int) -> None:
        self._waiting[rank].clear()
        self._close(self._agents[rank].stdin)

    def _read_output(self, letter: bytes, rank: int, fd: int) -> None:
        agent = self._agents[rank]
        data = os.read(fd, _CHUNK)
        if data:
            self._send(letter, rank, data)
        else:
            self._close(agent.stdout if letter == b"o" else agent.stderr)

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

    def _reap(self) -> None:
        for rank, agent in list(self._agents.items()):
            code = agent.poll()
            if code is None:
                continue
            for letter, pipe in ((b"o", agent.stdout), (b"e", agent.stderr)):
                assert pipe is not None
                if not pipe.closed:
                    self._drain(letter, rank, pipe.fileno())
                self._close(pipe)
            self._close_input(rank)
            del self._waiting[rank]
            self._send(b"x", rank, str(code).encode())
            del self._agents[rank]

    def _drain(self, letter: bytes, rank: int, fd: int) -> None:
        os.set_blocking(fd, False)
        with contextlib.suppress(BlockingIOError):
            while data := os.read(fd, _CHUNK):
                self._send(letter, rank, data)

    def _close(self, pipe: object) -> None:
        file = pipe
        assert hasattr(file, "fileno") and hasattr(file, "close")
        if not file.closed:  # type: ignore[attr-defined]
            self._watch(file.fileno(), False, 0, None)
            file.close()


def main() -> None:
    """Works for one launcher."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    sys.exit(HostAgent().run())


if __name__ == "__main__":
    main()
