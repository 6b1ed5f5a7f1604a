"""Ranks that have become slow: since which step, by how much, and in what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tfring.report.changes import Array, Change, find_changes
from tfring.report.job_steps import JobSteps

# A change that is sure but smaller than this part of a step is not worth a word.
LEAST_SHARE = 0.02
INPUT = "input pipeline"
COMPUTE = "computation"
OWN_WORK = "own work (input or computation)"
COMMUNICATION = "communication"


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

    def text(self) -> str:
        """Returns a sentence about it."""
        much = f"{self.more / 1e6:.3g} ms more per step than before"
        if self.rank is None:
            since = f"communication has become slower since step {self.step}: {much}"
        else:
            since = f"rank {self.rank} has become slow since step {self.step}: {much}"
            since += f", in its {self.part}"
        return since if self.until is None else f"{since}; fast again since step {self.until}"


def find_slowdowns(steps: JobSteps) -> list[Slowdown]:
    """Returns what has become slower while the job ran, the first change first.

    A rank counts as slow if its own work takes longer than before, and longer than before in
    comparison to the other ranks: what all ranks have in common, like larger batches, names nobody.

    Args:
        steps: Of the job.
    """
    if len(steps.number) == 0:
        return []
    found: list[Slowdown] = []
    least = LEAST_SHARE * float(np.median(steps.total))
    for position, rank in enumerate(steps.ranks):
        own = steps.own[position]
        for one, until in worse(find_changes(excess(steps.own, position)), least):
            if rises(own[:until], one.index, one.shift):
                found.append(_slowdown(steps, rank, one, until, OWN_WORK))
    shared = np.median(steps.exposed, axis=0)
    for one, until in worse(find_changes(shared), least):
        found.append(_slowdown(steps, None, one, until, COMMUNICATION))
    return sorted(found, key=lambda one: one.step)


def _slowdown(
    steps: JobSteps, rank: int | None, change: Change, until: int | None, part: str
) -> Slowdown:
    again = None if until is None else int(steps.number[until])
    return Slowdown(rank, int(steps.number[change.index]), change.shift, part, again)


def excess(own: Array, position: int) -> Array:
    """Returns by how much more than the other ranks a rank has worked, by step.

    Args:
        own: Own work by rank and step.
        position: Which row is the rank's.
    """
    others = np.delete(own, position, axis=0)
    more: Array = own[position] - (np.median(others, axis=0) if len(others) else 0.0)
    return more


def rises(values: Array, index: int, shift: float) -> bool:
    """Returns whether the values themselves have risen, too, by half the shift at least.

    Where another rank has become faster, this one has become slow by comparison only.

    Args:
        values: A rank's own work by step.
        index: Where its comparison with others has changed.
        shift: By how much.
    """
    # As many steps before as after, so that what changed long before does not count.
    old, new = values[max(0, 2 * index - len(values)) : index], values[index:]
    return float(np.median(new) - np.median(old)) > shift / 2


def worse(changes: Sequence[Change], least: float) -> list[tuple[Change, int | None]]:
    """Returns the changes to larger values, each with the index where that is made good again.

    Args:
        changes: Of one series, in order of time.
        least: Smaller ones are left out.
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
