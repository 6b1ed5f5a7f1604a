"""Numbers that are equal on every rank, for the names of collectives."""

from __future__ import annotations

import collections
import threading
from collections.abc import Hashable


class Ordinals:
    """Numbers things 0, 1, 2, ... in the order of their first use, in each group.

    Ranks that use things in the same order give them the same numbers, even if one rank has made
    more things and never uses them. A number stays for the life of the process, through shutdown()
    and another init(): a traced function keeps its names, so a new trace on one rank must find the
    same number. Any thread may ask.
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
