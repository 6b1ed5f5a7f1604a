"""Runs the agents of all ranks of one host behind one connection to the launcher.

The launcher starts one of these per host: on its own host directly, on others through ssh. What it
reads and writes is said in protocol.py. When the connection ends, or the launcher on another host
gives no sign of life for as long as its lease is, every rank ends, as agent.py says. The ranks of
an agent that was killed end with it, and this process kills what they leave behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import selectors
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import IO, Any

from tfring.launcher.agents import protocol
from tfring.launcher.agents.descendants import kill_orphans
from tfring.launcher.agents.last_words import finish_report
from tfring.launcher.agents.protocol import FRAME, GREETING, KEEPALIVE_SECONDS, agent_command

_PR_SET_CHILD_SUBREAPER = 36
_CHUNK = 1 << 16
# While so much waits for the connection, the ranks' output stays in their pipes.
_MOST_WAITING = 1 << 20
_MOST_DESCRIPTORS = 65536
# So long after the end of the connection agents that have not ended are killed, with their ranks.
_KILL_SECONDS = 4.0
_POLL_SECONDS = 0.05


@dataclass
class _Rank:
    """A rank that runs here."""

    agent: subprocess.Popen[bytes]
    status: IO[bytes]  # the read end of the pipe for what is known of it
    waiting: bytearray  # for its agent's standard input
    told: bytearray = field(default_factory=bytearray)  # what has come through `status`
    facts: dict[str, Any] = field(default_factory=dict)

    def streams(self) -> tuple[tuple[bytes, IO[bytes]], ...]:
        """Returns its output streams with their letters."""
        assert self.agent.stdout is not None and self.agent.stderr is not None
        return (b"o", self.agent.stdout), (b"e", self.agent.stderr)


class HostAgent:
    """Hands commands to the agents and their output to the launcher. Used by one thread.

    Args:
        parent: The launcher's process, if it is on this host; else 0.
    """

    def __init__(self, parent: int) -> None:
        self._ranks: dict[int, _Rank] = {}
        self._ended: dict[int, dict[str, Any]] = {}
        self._input = b""
        self._out = bytearray(GREETING)
        self._connected = True
        self._lease = 0.0
        self._heard = self._looked = self._said = time.monotonic()
        self._kill_at: float | None = None
        self._cleaning = False  # an agent was killed; what its rank started may be left
        self._report: dict[str, Any] | None = None
        self._selector = selectors.DefaultSelector()
        self._wake = protocol.set_up_signals(parent)
        os.set_blocking(0, False)
        os.set_blocking(1, False)
        self._selector.register(self._wake, selectors.EVENT_READ, "wake")
        self._selector.register(0, selectors.EVENT_READ, "commands")

    def run(self) -> int:
        """Works until the connection has ended and every agent after it. Returns the exit code."""
        while self._connected or self._ranks or self._cleaning:
            self._update()
            for key, _ in self._selector.select(self._timeout()):
                if key.data == "wake":
                    if protocol.PARENT_DIED in os.read(self._wake, 4096):
                        self._disconnect()
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
            self._check_time()
        if self._report is not None:
            finish_report(self._report, self._ended)
        return 0

    def _timeout(self) -> float | None:
        if self._cleaning:
            return _POLL_SECONDS
        if self._lease and self._connected:
            return KEEPALIVE_SECONDS
        return None if self._kill_at is None else max(0.0, self._kill_at - time.monotonic())

    def _check_time(self) -> None:
        """Gives a sign of life, and ends what has to end by now."""
        now = time.monotonic()
        if now - self._looked > 2 * KEEPALIVE_SECONDS:
            self._heard = now  # this process itself stood still, and has not read what came
        self._looked = now
        if self._lease and self._connected:
            if now - self._heard > self._lease:
                self._disconnect()
            elif not self._out and now - self._said >= KEEPALIVE_SECONDS / 2:
                self._said = now
                self._send(b"k", 0, b"")
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            for one in self._ranks.values():
                one.agent.kill()
        if self._cleaning:
            self._cleaning = kill_orphans([one.agent.pid for one in self._ranks.values()])

    def _update(self) -> None:
        """Waits for space on the connection only where something waits, and the other way round."""
        self._watch(1, bool(self._out) and self._connected, selectors.EVENT_WRITE, "out")
        space = len(self._out) < _MOST_WAITING
        for rank, one in self._ranks.items():
            stdin = one.agent.stdin
            assert stdin is not None
            if not stdin.closed:
                feeds = bool(one.waiting)
                self._watch(stdin.fileno(), feeds, selectors.EVENT_WRITE, (b"i", rank))
            for letter, pipe in (*one.streams(), (b"s", one.status)):
                if not pipe.closed:
                    wanted = space or letter == b"s"
                    self._watch(pipe.fileno(), wanted, selectors.EVENT_READ, (letter, rank))

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
            self._disconnect()

    def _execute(self, word: bytes, number: bytes, rest: bytes = b"") -> None:
        rank = int(number)
        if word == b"start":
            self._start(rank, json.loads(rest))
        elif word == b"lease":
            self._lease = float(rest)
        elif word == b"report":
            self._report = json.loads(rest)
        elif word == b"end":
            self._disconnect()
        elif word == b"bye":
            self._report = None
        elif word == b"signal" and rank in self._ranks:
            self._ranks[rank].waiting += b"signal " + rest + b"\n"

    def _disconnect(self) -> None:
        """Ends all ranks: the launcher is gone, or the connection to it."""
        if not self._connected:
            return
        self._connected = False
        self._out.clear()
        self._selector.unregister(0)
        self._kill_at = time.monotonic() + _KILL_SECONDS
        for each in self._ranks:
            self._close_input(each)

    def _start(self, rank: int, job: dict[str, Any]) -> None:
        status, status_write = os.pipe()
        os.set_blocking(status, False)
        agent = subprocess.Popen(
            agent_command("agent", os.getpid()),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
            pass_fds=[status_write],
        )
        os.close(status_write)
        assert agent.stdin is not None
        os.set_blocking(agent.stdin.fileno(), False)
        line = json.dumps({**job, "status_fd": status_write}).encode() + b"\n"
        self._ranks[rank] = _Rank(agent, os.fdopen(status, "rb", 0), bytearray(line))

    def _feed(self, rank: int) -> None:
        data, pipe = self._ranks[rank].waiting, self._ranks[rank].agent.stdin
        assert pipe is not None
        if pipe.closed:  # since it was found ready
            return
        try:
            del data[: os.write(pipe.fileno(), data)]
        except BlockingIOError:
            return
        except OSError:
            self._close_input(rank)  # the agent has ended

    def _close_input(self, rank: int) -> None:
        self._ranks[rank].waiting.clear()
        self._close(self._ranks[rank].agent.stdin)

    def _read_output(self, letter: bytes, rank: int, fd: int) -> None:
        one = self._ranks[rank]
        if letter == b"s":
            self._read_status(rank)
            return
        data = os.read(fd, _CHUNK)
        if data:
            self._send(letter, rank, data)
        else:
            self._close(dict(one.streams())[letter])

    def _read_status(self, rank: int) -> None:
        one = self._ranks[rank]
        try:
            while data := os.read(one.status.fileno(), _CHUNK):
                one.told += data
            self._close(one.status)
        except BlockingIOError:
            pass
        *lines, rest = bytes(one.told).split(b"\n")
        one.told = bytearray(rest)
        for line in lines:
            one.facts.update(json.loads(line))
        if lines and "code" not in one.facts:
            self._send(b"s", rank, json.dumps(one.facts).encode())

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
        for rank, one in list(self._ranks.items()):
            code = one.agent.poll()
            if code is None:
                continue
            if not one.status.closed:
                self._read_status(rank)
            for letter, pipe in one.streams():
                if not pipe.closed:
                    self._drain(letter, rank, pipe.fileno())
                self._close(pipe)
            self._close_input(rank)
            self._close(one.status)
            del self._ranks[rank]
            if "code" not in one.facts:
                one.facts.update(code=code, agent_died=True)
                self._cleaning = True
            self._ended[rank] = one.facts
            self._send(b"x", rank, json.dumps(one.facts).encode())

    def _drain(self, letter: bytes, rank: int, fd: int) -> None:
        os.set_blocking(fd, False)
        with contextlib.suppress(BlockingIOError):
            while data := os.read(fd, _CHUNK):
                self._send(letter, rank, data)

    def _close(self, pipe: IO[bytes] | None) -> None:
        assert pipe is not None
        if not pipe.closed:
            self._watch(pipe.fileno(), False, 0, None)
            pipe.close()


def main(parent: int) -> None:
    """Works for one launcher.

    Args:
        parent: The launcher's process, if it is on this host; else 0.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    # What a killed agent leaves behind becomes a child of this process.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    sys.exit(HostAgent(parent).run())
