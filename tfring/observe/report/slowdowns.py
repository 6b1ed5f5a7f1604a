"""Decides which rank is slow, for the report of a job and for its explanation.

A rank becomes slow at a change point: at which step, by how much, and in what. A rank that was slow
from the beginning has none; the time that the others wait for it shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tfring.observe.report.changes import Array, Change, find_changes
from tfring.observe.report.job_steps import JobSteps

# Changes below this part of a step are not reported.
LEAST_SHARE = 0.05
INPUT = "input pipeline"
COMPUTE = "computation"
OWN_WORK = "own work (input or computation)"
COMMUNICATION = "communication"

# A rank is always slow if it was last in this share of the late calls or steps, and all others
# waited for it for this share of the time.
_SHARE_OF_LATE = 0.75
_SHARE_OF_TIME = 0.2
_LEAST_LATE = 8
# Shorter waits, in nanoseconds, are noise.
_NOTABLE = 5_000_000


@dataclass(frozen=True)
class Slowdown:
    """A change for the worse.

    Attributes:
        rank: Whose; None: of the communication of all ranks.
        step: The first slow one.
        more: Nanoseconds per step more than before.
        part: In what: INPUT, COMPUTE, OWN_WORK or COMMUNICATION.
        until: The first step that was fast again; None: none so far.
    """

    rank: int | None
    step: int
    more: float
    part: str
    until: int | None = None

    def text(self, ranks: Sequence[int] | None = None) -> str:
        """Returns a sentence about it. If `rank` is a position, `ranks` has the ranks."""
        rank = self.rank if ranks is None or self.rank is None else ranks[self.rank]
        much = f"{self.more / 1e6:.3g} ms more per step than before"
        if self.rank is None:
            since = f"communication has become slower since step {self.step}: {much}"
        else:
            since = f"rank {rank} has become slow since step {self.step}: {much}"
            since += f", in its {self.part}"
        return since if self.until is None else f"{since}; fast again since step {self.until}"


def find_slowdowns(steps: JobSteps) -> list[Slowdown]:
    """Returns what became slower while the job ran, the first change first.

    A rank is slow if its own work takes longer than before, also compared with the other ranks, and
    steps take longer, too. What all ranks have in common, like larger batches, names nobody.
    """
    if len(steps.number) == 0:
        return []
    found: list[Slowdown] = []
    least = LEAST_SHARE * float(np.median(steps.total))
    total = steps.total.mean(axis=0)
    more = compute_excess(steps.own)
    for position, rank in enumerate(steps.ranks):
        own = steps.own[position]
        changes = find_changes(more[position])
        ends = [*(one.index for one in changes), len(own)][1:]
        end_of = {one.index: end for one, end in zip(changes, ends, strict=True)}
        for one, until in find_worse(changes, least):
            end = end_of[one.index]
            if matters(own[:end], total[:end], one.index, one.shift):
                found.append(_slowdown(steps, rank, one, until, OWN_WORK))
    shared = np.median(steps.exposed, axis=0)
    for one, until in find_worse(find_changes(shared), least):
        found.append(_slowdown(steps, None, one, until, COMMUNICATION))
    return sorted(found, key=lambda one: one.step)


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


def _slowdown(
    steps: JobSteps, rank: int | None, change: Change, until: int | None, part: str
) -> Slowdown:
    again = None if until is None else int(steps.number[until])
    return Slowdown(rank, int(steps.number[change.index]), change.shift, part, again)


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


def find_worse(changes: Sequence[Change], least: float) -> list[tuple[Change, int | None]]:
    """Returns the changes to larger values, each with the index where it ended, or None.

    Args:
        changes: Of one series, in order of time.
        least: Smaller changes are left out.
    """
    found: list[tuple[Change, int | None]] = []
    for position, one in enumerate(changes):
        if one.shift < least:
            continue
        level, until = one.shift, None
        for later in changes[position + 1 :]:
            level += later.shift
            if level < one.shift / 2:
                until = later.index
                break
        found.append((one, until))
    return found
