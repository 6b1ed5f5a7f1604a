"""Processes of ranks: what the Linux kernel does at the death of a parent, and what is left."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Collection, Iterator
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None)

# Processes end within milliseconds after SIGKILL, but for those that the kernel holds up.
_SECONDS = 5.0
_PAUSE_SECONDS = 0.01


def end_with_parent(parent: int, number: int) -> None:
    """Has the kernel send this process a signal when its parent ends, or ended before."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def take_orphans() -> None:
    """Makes this process the parent of all processes below it whose own parents end."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_orphans(keep: Collection[int]) -> bool:
    """Kills all descendants of this process but some children and what is below them.

    Returns whether there were any that it may kill: call it again until there are none.
    """
    any_left = False
    for pid in _descendants(keep):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
            any_left = True
        with contextlib.suppress(OSError):
            os.waitpid(pid, os.WNOHANG)  # others than children come to this process later
    return any_left


def kill_marked(variable: str, sessions: Collection[int]) -> None:
    """Kills all processes of a killed agent's ranks, and waits up to 5 s for their end.

    They have ``NAME=VALUE`` in their environment, or are in a session of the ranks: a program that
    sets its title overwrites its variables.
    """
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        found = [
            pid
            for pid, fields in _processes()
            if fields[0] != b"Z"
            and (int(fields[3]) in sessions or variable.encode() in _environment(pid))
        ]
        if not found:
            return
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE_SECONDS)


def _descendants(keep: Collection[int]) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid, fields in _processes():
        children.setdefault(int(fields[1]), []).append(pid)
    found: list[int] = []
    todo = [os.getpid()]
    while todo:
        below = [pid for pid in children.get(todo.pop(), []) if pid not in keep]
        found += below
        todo += below
    return found


def _processes() -> Iterator[tuple[int, list[bytes]]]:
    """Yields each process with its state, parent, group, session and more: proc(5), stat."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                stat = Path("/proc", entry, "stat").read_bytes()
                yield int(entry), stat.rpartition(b")")[2].split()


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # another user's
        return []
