"""One rank from the launcher's side: its agent, its output, how it ended."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, BinaryIO

from tfring.launcher.placement import Slot, is_local

_AGENT = str(Path(__file__).with_name("agent.py"))
_TAIL_BYTES = 64 << 10
_TRACEBACK = b"Traceback (most recent call last):"

# Variables of the login on this host. They are not copied to other hosts.
_PERSONAL = re.compile(
    r"BASH_FUNC_.*|DBUS_.*|DISPLAY|HOME|HOSTNAME|LOGNAME|MAIL|OLDPWD|PWD|SHELL|SHLVL|SSH_.*|TERM|"
    r"TMPDIR|TMUX.*|USER|XAUTHORITY|XDG_.*|_"
)


@dataclass(frozen=True)
class SshOptions:
    """How to reach other hosts."""

    port: int | None = None
    identity_file: str | None = None

    def command(self, host: str, remote: list[str]) -> list[str]:
        """Returns the command line that runs ``remote`` on ``host``. It contains no secret."""
        words = ["ssh", "-T", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=15"]
        if self.port is not None:
            words += ["-p", str(self.port)]
        if self.identity_file is not None:
            words += ["-i", self.identity_file]
        return [*words, host, shlex.join(remote)]


@dataclass
class RankProcess:
    """A rank that runs or has run. JobRunner closes the pipes of its agent."""

    slot: Slot
    agent: subprocess.Popen[bytes]
    remote: bool
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
        with contextlib.suppress(OSError, ValueError):
            assert self.agent.stdin is not None
            os.write(self.agent.stdin.fileno(), f"signal {number}\n".encode())

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
        number = -self.code if self.code < 0 else self.code - 128 if self.remote else 0
        if number > 0:
            with contextlib.suppress(ValueError):
                return f"signal {number} ({signal.Signals(number).name})"
        if self.remote and self.code == 255:
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
    ssh: SshOptions,
    listen: dict[str, Any] | None,
    copies: Path | None,
    ranks: int,
) -> RankProcess:
    """Starts one rank through its agent.

    Args:
        slot: Which rank, and where.
        argv: The command.
        environment: Variables of this rank in addition to those of the launcher.
        ssh: How to reach other hosts.
        listen: Rank 0: where to open the rendezvous socket; see agent.py.
        copies: Folder for copies of the output, or None.
        ranks: Number of ranks, for the width of file names.
    """
    remote = not is_local(slot.host)
    command = [sys.executable, "-I", "-S", _AGENT]
    if remote:
        command = ssh.command(slot.host, command)
        own = {k: v for k, v in os.environ.items() if not _PERSONAL.fullmatch(k)}
        environment = {**own, **environment}
    agent = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
    )
    job = {"argv": argv, "env": dict(environment), "cwd": os.getcwd(), "listen": listen}
    assert agent.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # JobRunner will see that it has ended
        write_all(agent.stdin, json.dumps(job).encode() + b"\n")
    process = RankProcess(slot, agent, remote)
    if copies is not None:
        folder = copies / f"rank.{slot.rank:0{len(str(ranks - 1))}d}"
        folder.mkdir(parents=True, exist_ok=True)
        process.copies = {name: (folder / name).open("wb") for name in ("stdout", "stderr")}
    return process
