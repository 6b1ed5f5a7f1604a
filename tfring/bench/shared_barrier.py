"""A barrier between processes of one host, in memory that they share."""

from __future__ import annotations

import mmap
import os
import time

import numpy as np

_WORDS = 8  # of 8 bytes: the counters of a process have a cache line of their own
_FIRST_PAUSE, _LONGEST_PAUSE = 10e-6, 200e-6


def file_size(count: int) -> int:
    """Returns how many bytes the file needs for so many processes."""
    return count * _WORDS * 8


class SharedBarrier:
    """A barrier between processes of one host, in a page that they share.

    A process sleeps until all are here, so that it takes no time from those that still work, and
    then spins until all have seen that, so that all leave together. The counters only grow, and
    each is written by one process.

    Args:
        fd: The file of `shared_file`; it may be closed afterwards.
        place: The number of this process.
        count: How many processes there are.
    """

    def __init__(self, fd: int, place: int, count: int) -> None:
        self._memory = mmap.mmap(fd, 0)
        counters = np.frombuffer(self._memory, np.uint64).reshape(-1, _WORDS)
        self._arrived, self._leaving = counters[:count, 0], counters[:count, 1]
        self._place = place
        self._turn = 0

    def wait(self) -> None:
        """Waits for the others."""
        self._turn += 1
        self._arrived[self._place] = self._turn
        pause = _FIRST_PAUSE
        while self._arrived.min() < self._turn:
            time.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)
        self._leaving[self._place] = self._turn
        while self._leaving.min() < self._turn:
            os.sched_yield()
