"""Groups the steps of several optimizers or tapes into rounds.

A round ends with a step of the optimizer that is used most often. If a GAN trains its critic five
times for each step of its generator, each fifth round has two steps. With one optimizer each step
is a round.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tfring.observe.recorder.gradients import Array, Series
from tfring.observe.recorder.steps import Steps


@dataclass(frozen=True)
class Rounds:
    """Rounds of one rank, the oldest first; times in nanoseconds of its clock.

    Attributes:
        series: The series whose steps end the rounds; None: there are no rounds.
        steps: The steps of the rounds, by round and time.
        idle: Of each step: when this rank began to do nothing but wait for its gradients.
        starts: Where the steps of each round begin.
        last: Of each round: the position of the step that ends it and gives it its number.
    """

    series: Series | None
    steps: Steps
    idle: Array
    starts: Array
    last: Array

    def __len__(self) -> int:
        return len(self.last)

    @property
    def number(self) -> Array:
        """The number of each round, from 1 on."""
        return self.steps.number[self.last]

    @property
    def plan(self) -> Array:
        """The plan by which all ranks know the round; each rank numbers rounds for itself."""
        return self.steps.plan[self.last]

    @property
    def began(self) -> Array:
        """When the round before ended."""
        return self.steps.began[self.last]

    @property
    def end(self) -> Array:
        """When the last bucket was reduced."""
        return self.steps.end[self.last]

    @property
    def own(self) -> Array:
        """The rank's own work: all time in which it did not only wait for its gradients."""
        exposed = np.maximum(0, self.steps.end - self.idle)
        own: Array = np.maximum(0, self.end - self.began - self.sums(exposed))
        return own

    def sums(self, values: Array) -> Array:
        """Returns the sum in each round; steps are the last dimension of `values`."""
        sums: Array = values[..., :0]  # without rounds there are no steps either
        if len(self):
            sums = np.add.reduceat(values, self.starts, axis=-1)
        return sums

    def largest(self, values: Array) -> Array:
        """Returns the position of the step with the largest value in each round."""
        counts = np.diff(np.append(self.starts, len(self.steps)))
        order = np.lexsort((values, np.repeat(np.arange(len(self)), counts)))
        found: Array = order[self.starts + counts - 1]
        return found

    def take(self, chosen: Array) -> Rounds:
        """Returns the rounds that a mask chooses."""
        counts = np.diff(np.append(self.starts, len(self.steps)))
        kept = np.repeat(chosen, counts)
        starts = np.concatenate([[0], np.cumsum(counts[chosen])])[:-1].astype(np.int64)
        last = (self.last - self.starts)[chosen] + starts
        return Rounds(self.series, self.steps.take(kept), self.idle[kept], starts, last)


def rounds_of(steps: Steps) -> Rounds:
    """Returns the rounds of the optimizers that were used last.

    Rounds whose begin is unknown, and rounds that a failed or open step would end, are left out. A
    program that begins to train another model begins to count anew.
    """
    steps = steps.good()
    steps = steps.take(np.isin(steps.series, _in_use(steps)))
    steps = steps.take(np.argsort(steps.end, kind="stable"))
    if len(steps) == 0:
        nothing = np.zeros(0, dtype=np.int64)
        return Rounds(None, steps, nothing, nothing, nothing)
    # Of those that are used equally often, but for what is missing at both ends, any will do, but
    # the same one on all ranks.
    found, counts = np.unique(steps.series, return_counts=True)
    pace = int(found[counts >= counts.max() - 2].max())
    idle = find_idle(steps.ready, steps.end)
    last = np.flatnonzero(steps.series == pace)
    # A step belongs to the round in which its last bucket was there: two that are reduced at the
    # same time may end in either order.
    of = np.searchsorted(steps.end[last], steps.ready)
    of[last] = np.arange(len(last))
    began = np.append(steps.began[last], 0)[of]
    inside = (began > 0) & (steps.ready > began)
    inside[last] = steps.began[last] > 0
    by_round = np.argsort(of, kind="stable")
    by_round = by_round[inside[by_round]]
    _, starts = np.unique(of[by_round], return_index=True)
    ends = np.flatnonzero(np.isin(by_round, last))
    return Rounds(steps.names[pace], steps.take(by_round), idle[by_round], starts, ends)


def find_idle(ready: Array, end: Array) -> Array:
    """Returns when a rank began to do nothing but wait for the gradients of each step.

    While the gradients of a step before are reduced, the rank waits for those.

    Args:
        ready: When the last bucket of each step was ready, in order of time in the last dimension.
        end: When it was reduced.
    """
    idle: Array = ready.copy()
    before = np.maximum.accumulate(end, axis=-1)[..., :-1]
    idle[..., 1:] = np.maximum(idle[..., 1:], before)
    return idle


def _in_use(steps: Steps) -> Array:
    """Returns the series that are in use: the newest one, and those used at the same time."""
    found = np.unique(steps.series)
    if len(found) == 0:
        return found
    began = np.array([steps.first[steps.series == one].min() for one in found])
    last = np.array([steps.ready[steps.series == one].max() for one in found])
    sets = np.array([steps.names[one][0] for one in found])
    newest = np.argsort(-last)
    newest = newest[sets[newest] == sets[newest[0]]]
    # From the newest back, as long as they were used at the same time.
    since = np.minimum.accumulate(began[newest])
    together = np.concatenate([[True], np.cumprod(last[newest][1:] >= since[:-1]) > 0])
    used: Array = found[newest[together]]
    return used
