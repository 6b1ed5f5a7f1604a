"""One rank from the launcher's side: its agent, its output, how it ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, BinaryIO

from tfring.launcher.placement import Slot
from tfring.launcher.remote import Host, RemoteAgent

_AGENT = str(Path(__file__).with_name("agent.py"))
_TAIL_BYTES = 64 << 10
_TRACEBACK = b"Traceback (most recent call last):"


@dataclass
class LocalAgent:
    """The agent of one rank on this host, with pipes to it."""

    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        """Its process."""
        return self.process.pid

    def poll(self) -> int | None:
        """Returns how its rank ended, as subprocess does; None if it has not."""
        return self.process.poll()

    def lost(self) -> bool:
        """Whether the rank ended unseen: never on this host."""
        return False

    def signal(self, number: int) -> None:
        """Passes a signal on to the rank's process group."""
        with contextlib.suppress(OSError, ValueError):
            assert self.process.stdin is not None
            os.write(self.process.stdin.fileno(), f"signal {number}\n".encode())

    def kill(self) -> None:
        """Gives the rank up."""
        self.process.kill()

    def pipes(self) -> dict[str, IO[bytes]]:
        """Returns the pipes with the rank's output, by name."""
        assert self.process.stdout is not None and self.process.stderr is not None
        return {"stdout": self.process.stdout, "stderr": self.process.stderr}

    def close(self) -> None:
        """Closes the pipes, upon which the agent ends its rank."""
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()
        self.process.poll()


@dataclass
class RankProcess:
    """A rank that runs or has run. JobRunner closes its agent."""

    slot: Slot
    agent: LocalAgent | RemoteAgent
    tail: bytearray = field(default_factory=bytearray)
    traceback_at: float | None = None  # when the last traceback on its error output began
    ended_at: float | None = None
    code: int | None = None  # as in subprocess: negative for a signal
    ended_by_launcher: bool = False
    copies: dict[str, BinaryIO] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        """Its rank."""
        return self.slot.rank

    def signal(self, number: int) -> None:
        """Passes a signal to the rank's process group."""
        self.agent.signal(number)

    def record_output(self, name: str, data: bytes, now: float) -> None:
        """Keeps the end of the error output; copies all output to files if that was asked for."""
        if name in self.copies:
            self.copies[name].write(data)
            self.copies[name].flush()
        if name != "stderr":
            return
        before = bytes(self.tail[-len(_TRACEBACK) :])
        if _TRACEBACK in before + data and _TRACEBACK not in before:
            self.traceback_at = now
        self.tail += data
        del self.tail[:-_TAIL_BYTES]

    def failed(self) -> bool:
        """Whether it ended with an error."""
        return self.code is not None and self.code != 0

    def exit_code(self) -> int:
        """The exit code that a shell would report."""
        assert self.code is not None
        return 128 - self.code if self.code < 0 else self.code

    def failed_at(self) -> float:
        """Estimates when its failure began.

        A Python rank fails when its traceback appears, and may need seconds from there to its end,
        while other ranks already fail because of it. A killed rank ends only after the kernel has
        freed its memory, and other ranks may see its connections close before that.
        """
        assert self.ended_at is not None
        if self.code is not None and (self.code < 0 or self.code > 128):
            return self.ended_at - 1.0
        if self.traceback_at is not None:
            return self.traceback_at
        return self.ended_at

    def describe_end(self) -> str:
        """``exit code 3`` or ``signal 9 (SIGKILL)``."""
        assert self.code is not None
        if self.code < 0:
            with contextlib.suppress(ValueError):
                return f"signal {-self.code} ({signal.Signals(-self.code).name})"
        if self.code == 255 and self.agent.lost():
            return "exit code 255 (ssh could not reach the host, or lost it)"
        return f"exit code {self.code}"


def write_all(pipe: IO[bytes], data: bytes) -> None:
    """Writes all of `data` to an unbuffered pipe, which a signal can interrupt."""
    left = memoryview(data)
    while left:
        left = left[pipe.write(left) :]


def start_rank(
    slot: Slot,
    argv: list[str],
    environment: Mapping[str, str],
    *,
    host: Host | None,
    listen: dict[str, Any] | None,
    copies: Path | None,
    ranks: int,
) -> RankProcess:
    """Starts one rank through its agent.

    Args:
        slot: Which rank, and where.
        argv: The command.
        environment: Variables of this rank in addition to those that processes on its host have.
        host: The connection to its host; None for this host.
        listen: Rank 0: where to open the rendezvous socket; see agent.py.
        copies: Folder for copies of the output, or None.
        ranks: Number of ranks, for the width of file names.
    """
    job = {"argv": argv, "env": dict(environment), "cwd": os.getcwd(), "listen": listen}
    line = json.dumps(job).encode()
    agent: LocalAgent | RemoteAgent
    if host is not None:
        host.start(slot.rank, line)
        agent = RemoteAgent(host, slot.rank)
    else:
        agent = LocalAgent(_start_agent())
        assert agent.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # JobRunner will see that it has ended
            write_all(agent.process.stdin, line + b"\n")
    process = RankProcess(slot, agent)
    if copies is not None:
        folder = copies / f"rank.{slot.rank:0{len(str(ranks - 1))}d}"
        folder.mkdir(parents=True, exist_ok=True)
        process.copies = {name: (folder / name).open("wb") for name in ("stdout", "stderr")}
    return process


def _start_agent() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", _AGENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
    )
