"""Finds ranks that become slow while the job runs, from the times of a few steps at a time."""

from __future__ import annotations

import numpy as np

from tfring.observe.report.changes import LEAST_AFTER, LEAST_BEFORE, WINDOW, Array, find_change
from tfring.observe.report.slowdowns import (
    COMPUTE,
    INPUT,
    LEAST_SHARE,
    OWN_WORK,
    Slowdown,
    compute_excess,
    matters,
)

# The first steps trace functions and fill caches.
_SKIPPED = 20


class SlowdownMonitor:
    """Tells once of each rank that becomes slow, and of each that is fast again.

    Used by one thread. Holds WINDOW steps of all ranks.

    Args:
        ranks: The number of ranks.
    """

    def __init__(self, ranks: int) -> None:
        self._numbers = np.zeros(0, dtype=np.int64)
        self._own = np.zeros((ranks, 0))
        self._input = np.zeros((ranks, 0))
        self._total = np.zeros(0)
        # By rank: the first step of its present level; and since when it is slow.
        self._since = np.zeros(ranks, dtype=np.int64)
        self._slow: dict[int, Slowdown] = {}

    def add(self, numbers: Array, own: Array, inputs: Array, total: Array) -> list[Slowdown]:
        """Takes in steps; returns ranks that became slow, and with `until` those fast again.

        Args:
            numbers: Of the steps, ascending, above all before.
            own: Nanoseconds of own work, by rank and step.
            inputs: Nanoseconds of these for input, by rank and step; NaN: unknown.
            total: Nanoseconds that each step took.
        """
        kept = numbers > _SKIPPED
        self._numbers = np.concatenate([self._numbers, numbers[kept]])[-WINDOW:]
        self._own = np.concatenate([self._own, own[:, kept]], axis=1)[:, -WINDOW:]
        self._input = np.concatenate([self._input, inputs[:, kept]], axis=1)[:, -WINDOW:]
        self._total = np.concatenate([self._total, total[kept]])[-WINDOW:]
        if len(self._numbers) < LEAST_BEFORE + LEAST_AFTER:
            return []
        more = compute_excess(self._own)
        checked = (self._check(rank, more[rank]) for rank in range(len(more)))
        return [one for one in checked if one is not None]

    def _check(self, rank: int, more: Array) -> Slowdown | None:
        begin = int(np.searchsorted(self._numbers, self._since[rank]))
        change = find_change(more[begin:])
        if change is None:
            return None
        step = int(self._numbers[begin + change.index])
        self._since[rank] = step
        if change.shift < 0:
            return self._recovered(rank, step, -change.shift)
        own, total = self._own[rank, begin:], self._total[begin:]
        least = LEAST_SHARE * float(np.median(self._total))
        if change.shift < least or not matters(own, total, change.index, change.shift):
            return None
        part = self._part(rank, begin, change.index, change.shift)
        self._slow[rank] = Slowdown(rank, step, change.shift, part)
        return self._slow[rank]

    def _recovered(self, rank: int, step: int, less: float) -> Slowdown | None:
        before = self._slow.get(rank)
        if before is None or less < before.more / 2:
            return None
        del self._slow[rank]
        return Slowdown(rank, before.step, before.more, before.part, step)

    def _part(self, rank: int, begin: int, index: int, shift: float) -> str:
        inputs = self._input[rank, begin:]
        if np.isnan(inputs).any():
            return OWN_WORK
        change = float(np.median(inputs[index:]) - np.median(inputs[:index]))
        return INPUT if change > shift / 2 else COMPUTE
