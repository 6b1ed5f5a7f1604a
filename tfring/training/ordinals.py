"""Numbers that come out the same on every rank, for the names of collectives."""

from __future__ import annotations

import collections
import threading
from collections.abc import Hashable


class Ordinals:
    """Numbers things 0, 1, 2, ... in the order of their first use, each group by itself.

    Ranks that use things in the same order give them the same numbers, even if one rank has made
    more things, which it never uses. A number stays as long as the process, through shutdown() and
    another init(): functions that were traced before keep the names that they were traced with, so
    another trace on one rank alone has to find the same number. Any thread may ask.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards everything below
        self._numbers: dict[tuple[Hashable, Hashable], int] = {}
        self._next: collections.Counter[Hashable] = collections.Counter()

    def number(self, key: Hashable, group: Hashable = None) -> int:
        """Returns the number of `key` in its group; the next free one if the key is new."""
        with self._lock:
            if (group, key) not in self._numbers:
                self._numbers[group, key] = self._next[group]
                self._next[group] += 1
            return self._numbers[group, key]
