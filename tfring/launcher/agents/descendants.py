"""The processes below this one, found in /proc."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection


def descendants(keep: Collection[int] = ()) -> list[int]:
    """Returns the ids of all descendants, orphans too where this process is a subreaper.

    Args:
        keep: Children that are left out, with what is below them.
    """
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{entry}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(entry))
    found: list[int] = []
    todo = [os.getpid()]
    while todo:
        below = [pid for pid in children.get(todo.pop(), []) if pid not in keep]
        found += below
        todo += below
    return found


def kill_descendants() -> None:
    """Kills and reaps all descendants, until no new ones have been forked meanwhile."""
    while True:
        for pid in descendants():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def kill_orphans(keep: Collection[int]) -> bool:
    """Kills all descendants but some children and what is below them, without waiting.

    Args:
        keep: The children that live on.

    Returns:
        Whether there were any: call it again until there are none.
    """
    found = descendants(keep)
    for pid in found:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.waitpid(pid, os.WNOHANG)  # of others than children this process is told later
    return bool(found)
