"""Decides which rank is slow, for the report of a job and for its explanation.

A rank becomes slow at a change point, where its times move to another level for good: at which
step, by how much, and in what. A rank that was slow from the beginning has none; the time that the
others wait for it shows it.

There is no threshold on times. Each place where the series could be cut is tried, and the parts are
compared by rank (Mann-Whitney), so a few very slow steps do not count more than others: A. N.
Pettitt, "A non-parametric approach to the change-point problem", Applied Statistics 28, 1979; D. M.
Hawkins and Q. Deng, "A nonparametric change-point control chart", Journal of Quality Technology 42,
2010.

Neighbouring steps are often alike, which looks like a change. So the statistic is divided by the
growth of its variance that autocorrelation causes (the initial positive sequence of C. J. Geyer,
"Practical Markov chain Monte Carlo", Statistical Science 7, 1992).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfring.observe.report.job_steps import JobSteps

Array = np.ndarray[Any, Any]

# In standard deviations. A monitor tests hundreds of cuts hundreds of times, and must not be wrong
# once in a hundred runs.
SURE = 5.2
LEAST_BEFORE = 30
LEAST_AFTER = 15
# How many values a monitor looks at: a change is seen soon after it happens.
WINDOW = 300
_COMPARED = 300  # values on each side of a cut, to say how large a change is
_MOST_LAGS = 50
# Changes below this part of a step are not reported.
LEAST_SHARE = 0.05
INPUT = "input pipeline"
COMPUTE = "computation"
OWN_WORK = "own work (input or computation)"
# The first steps trace functions and fill caches.
_SKIPPED = 20
_LOOK = 10  # steps between two looks

# A rank is always slow if it was last in this share of the late calls or steps, and all others
# waited for it for this share of the time.
_SHARE_OF_LATE = 0.75
_SHARE_OF_TIME = 0.2
_LEAST_LATE = 8
# Shorter waits, in nanoseconds, are noise.
_NOTABLE = 5_000_000


@dataclass(frozen=True)
class Change:
    """One change of level.

    Attributes:
        index: Of the first value on the new level.
        shift: The median of all differences between values after and before (Hodges and Lehmann).
        score: How sure it is, in standard deviations.
    """

    index: int
    shift: float
    score: float


def find_change(values: Array) -> Change | None:
    """Returns the clearest change of level in a series, or None.

    Args:
        values: In order of time.
    """
    count = len(values)
    if count < LEAST_BEFORE + LEAST_AFTER:
        return None
    ranks = _ranks(values)
    cuts = np.arange(LEAST_BEFORE, count - LEAST_AFTER + 1)
    # The ranks of the first `cuts` values add up to this on average, if nothing changes.
    sums = np.cumsum(ranks)[cuts - 1] - cuts * (count + 1) / 2
    spread = float(np.var(ranks)) * cuts * (count - cuts) / (count - 1)
    if not spread.all():
        return None  # all values are equal
    scores = np.abs(sums) / np.sqrt(spread)
    best = int(np.argmax(scores))
    cut = int(cuts[best])
    if scores[best] < SURE:
        return None
    shift = _shift(values[:cut], values[cut:])
    growth = _growth(ranks, cut)
    by_size = abs(shift) / _error(values, cut) if growth > 1 else 0.0
    score = float(max(scores[best], by_size) / np.sqrt(growth))
    return Change(cut, shift, score) if score >= SURE else None


def _error(values: Array, cut: int) -> float:
    """Returns the standard error of a shift, from the median absolute deviation of both parts.

    Once the parts do not overlap, ranks cannot tell a large change from a small one.
    """
    old, new = values[:cut], values[cut:]
    rest = np.concatenate([old - np.median(old), new - np.median(new)])
    spread = 1.4826 * float(np.median(np.abs(rest)))  # as of a normal distribution
    return max(spread * math.sqrt(1 / len(old) + 1 / len(new)), 1e-300)


def _shift(old: Array, new: Array) -> float:
    return float(np.median(np.subtract.outer(new[:_COMPARED], old[-_COMPARED:])))


def _ranks(values: Array) -> Array:
    """Returns the rank of each value, from 1 on; equal values share the mean."""
    order = np.argsort(values)
    ordered = values[order]
    ranks: Array = np.empty(len(values))
    ranks[order] = np.arange(1, len(values) + 1)
    if (ordered[1:] == ordered[:-1]).any():
        below = np.searchsorted(ordered, values, side="left")
        upto = np.searchsorted(ordered, values, side="right")
        ranks = (below + upto + 1) / 2
    return ranks


def _growth(ranks: Array, cut: int) -> float:
    """Returns the factor by which autocorrelation multiplies the variance of a sum; at least 1."""
    rest = ranks - np.where(np.arange(len(ranks)) < cut, ranks[:cut].mean(), ranks[cut:].mean())
    power = float(rest @ rest)
    noise = 1 / np.sqrt(len(rest))
    growth = 1.0
    for lag in range(1, min(_MOST_LAGS, len(rest) // 4)):
        alike = float(rest[:-lag] @ rest[lag:]) / power if power else 0.0
        if alike < noise:
            break
        growth += 2 * alike
    return growth


@dataclass(frozen=True)
class Slowdown:
    """A change for the worse.

    Attributes:
        rank: Whose; of a monitor its position.
        step: The first slow one.
        more: Nanoseconds per step more than before.
        part: In what: INPUT, COMPUTE, or OWN_WORK.
        until: The first step that was fast again; None: none so far.
    """

    rank: int
    step: int
    more: float
    part: str
    until: int | None = None

    def text(self) -> str:
        """Returns a sentence about it."""
        since = (
            f"rank {self.rank} has become slow since step {self.step}: {self.more / 1e6:.3g} ms "
            f"more per step than before, in its {self.part}"
        )
        return since if self.until is None else f"{since}; fast again since step {self.until}"


def find_slowdowns(steps: JobSteps) -> list[Slowdown]:
    """Returns what became slower while the job ran, the first change first.

    A rank is slow if its own work takes longer than before, also compared with the other ranks, and
    steps take longer, too. What all ranks have in common, like larger batches, names nobody.
    """
    monitor, found = SlowdownMonitor(len(steps.ranks)), dict[tuple[int, int], Slowdown]()
    unknown = np.full(steps.own.shape, np.nan)
    for begin in range(0, len(steps.number), _LOOK):
        part = slice(begin, begin + _LOOK)
        total = steps.total[:, part].mean(axis=0)
        for one in monitor.add(steps.number[part], steps.own[:, part], unknown[:, part], total):
            found[one.rank, one.step] = one
    excess = compute_excess(steps.own)
    known = []
    for one in found.values():
        # Now all of its slow steps are known.
        begin, end = np.searchsorted(steps.number, [one.step, one.until or steps.number[-1] + 1])
        own = excess[one.rank]
        more = float(np.median(own[begin:end]) - np.median(own[max(0, begin - WINDOW) : begin]))
        known.append(replace(one, rank=steps.ranks[one.rank], more=more))
    return sorted(known, key=lambda one: one.step)


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


def find_always_slow(last_rank: Array, waited: Array, time: float) -> tuple[int, Array] | None:
    """Finds a rank that comes last again and again.

    Args:
        last_rank: By call or step: the rank that was last; -1: unknown.
        waited: By call or step: nanoseconds for which all others waited for it.
        time: Nanoseconds that all these calls or steps took.

    Returns:
        The rank, and the positions of the calls or steps that it delayed; None: there is no such
        rank.
    """
    late = np.flatnonzero((waited > _NOTABLE) & (last_rank >= 0))
    if len(late) < _LEAST_LATE:
        return None
    rank = int(np.bincount(last_rank[late]).argmax())
    own = late[last_rank[late] == rank]
    if len(own) < _SHARE_OF_LATE * len(late) or waited[own].sum() < _SHARE_OF_TIME * time:
        return None
    return rank, own


def compute_excess(own: Array) -> Array:
    """Returns how much more than the median of the others each rank worked, by rank and step.

    For a single rank it is its own work.
    """
    others = len(own) - 1
    if others < 1:
        return own * 1.0
    order = np.argsort(own, axis=0)
    ordered = np.take_along_axis(own, order, axis=0)
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(len(own))[:, np.newaxis], axis=0)

    def of_others(number: int) -> Array:
        """The value of this place among the others: one more where the rank itself is before."""
        return np.take_along_axis(ordered, number + (place <= number), axis=0)

    more: Array = own - (of_others((others - 1) // 2) + of_others(others // 2)) / 2
    return more


def matters(own: Array, total: Array, index: int, shift: float) -> bool:
    """Tells whether a rank that is slow compared with the others slows the job.

    Its own work must take longer, too: the others may have become faster. And steps must take
    longer: ranks may take turns in waiting for input, and the job is as fast as before.

    Args:
        own: The rank's own work by step.
        total: How long the steps took.
        index: Where the comparison with the others changed.
        shift: By how much.
    """
    # As many steps before as after, so that what changed long before does not count.
    begin = max(0, 2 * index - len(own))

    own_rise = float(np.median(own[index:]) - np.median(own[begin:index]))
    # Of many uneven ranks the slowest of a step is slow already, so that steps become longer by
    # less than the shift.
    total_rise = _middle(total[index:]) - _middle(total[begin:index])
    return own_rise > shift / 2 and total_rise > shift / 8


def _middle(values: Array) -> float:
    """Returns the mean without the smallest and the largest tenth."""
    left_out = len(values) // 10
    return float(np.sort(values)[left_out : len(values) - left_out].mean())
