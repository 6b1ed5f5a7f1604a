"""Numbers that come out the same on every rank, for the names of collectives."""

from __future__ import annotations

import collections
import threading
from collections.abc import Hashable

from tfring import process_sets


class Ordinals:
    """Numbers things 0, 1, 2, ... in the order of their first use, each group by itself.

    Ranks that use things in the same order give them the same numbers, even if one rank has made
    more things, which it never uses. All numbers start again with every generation (one life of
    the runtime, from init to shutdown), because one rank may have been in another job before. Keys
    are kept until then. Any thread may ask.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards everything below
        self._generation = process_sets.generation()
        self._numbers: dict[tuple[Hashable, Hashable], int] = {}
        self._next: collections.Counter[Hashable] = collections.Counter()

    def number(self, key: Hashable, group: Hashable = None) -> int:
        """Returns the number of `key` in its group; the next free one if the key is new."""
        with self._lock:
            if self._generation != process_sets.generation():
                self._generation = process_sets.generation()
                self._numbers.clear()
                self._next.clear()
            if (group, key) not in self._numbers:
                self._numbers[group, key] = self._next[group]
                self._next[group] += 1
            return self._numbers[group, key]
