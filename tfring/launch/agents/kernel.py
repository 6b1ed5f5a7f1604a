"""What the Linux kernel does for the agents: signals at the death of a parent, and orphans."""

from __future__ import annotations

import ctypes
import os

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None)


def end_with_parent(parent: int, number: int) -> None:
    """Has the kernel send this process a signal when its parent ends, or ended before."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def take_orphans() -> None:
    """Makes this process the parent of all processes below it whose own parents end."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
