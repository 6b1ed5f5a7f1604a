"""The place of training in its data, and the next samples of each rank. Pure: no job needed.

The state is a few numbers. The seed and the epoch give the order of an epoch. The next batch
follows the consumed samples, and the rank and the size give a rank's part of it. So a job can
change its size after any step, and each sample is in exactly one step of each epoch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

SAME = ("samples", "seed", "shuffle")  # must match between a place within an epoch and its data


def permutation(samples: int, seed: int, epoch: int) -> Any:
    """Returns all numbers below `samples` in an order that is equal in every process.

    Each number gets random high bits, and the numbers are sorted by them. The bits of Philox and a
    sort are equal in all versions of NumPy and on all machines; the methods of NumPy's Generator do
    not promise that. A job may be resumed years later. (Philox: Salmon et al., "Parallel random
    numbers: as easy as 1, 2, 3", 2011.)

    Args:
        samples: how many, below 2**40.
        seed: at least 0.
        epoch: at least 0; each epoch has a different order.

    Returns:
        uint32 of shape [samples], uint64 beyond 2**32 samples.
    """
    bits = max(1, (samples - 1).bit_length())
    below = np.uint64((1 << bits) - 1)
    generator = np.random.Philox(np.random.SeedSequence([seed, epoch]))
    keys = generator.random_raw(samples)
    keys &= ~below
    keys |= np.arange(samples, dtype=np.uint64)
    keys.sort()  # all differ, so there is one result
    keys &= below
    return keys if bits > 32 else keys.astype(np.uint32)


@dataclass(frozen=True)
class Cursor:
    """A place in the samples of an epoch.

    Attributes:
        samples: the number of samples.
        seed: of the order.
        shuffle: whether epochs are shuffled; otherwise samples come in order of their numbers.
        epoch: counted from 0.
        consumed: samples of this epoch that are in finished steps.
    """

    samples: int
    seed: int = 0
    shuffle: bool = True
    epoch: int = 0
    consumed: int = 0

    @property
    def left(self) -> int:
        """The samples of this epoch that are not yet consumed."""
        return self.samples - self.consumed

    def order(self) -> Any:
        """Returns the numbers of all samples in the order of this epoch: integers, [samples]."""
        if self.shuffle:
            return permutation(self.samples, self.seed, self.epoch)
        return np.arange(self.samples, dtype=np.uint32 if self.samples <= 2**32 else np.uint64)

    def saved(self, state: Mapping[str, Any]) -> Cursor:
        """Returns the place of a saved state, in these samples.

        Args:
            state: the attributes, of a cursor of this job or another.

        Raises:
            ValueError: the place is within an epoch of other samples, or of another order.
        """
        consumed = state.get("consumed", -1)
        if consumed in (0, state.get("samples")):
            return replace(self, epoch=state["epoch"] + (consumed != 0), consumed=0)
        for name in SAME:
            if state.get(name) != getattr(self, name):
                raise ValueError(
                    f"the saved state is of data with {name}={state.get(name)}, but this data has "
                    f"{getattr(self, name)}. Use the same data as when the state was saved, or "
                    "resume from the end of an epoch"
                )
        return replace(self, epoch=state["epoch"], consumed=consumed)

    def at(self, consumed: int) -> Cursor:
        """Returns another place in the same epoch."""
        return replace(self, consumed=consumed)

    def next_epoch(self) -> Cursor:
        """Returns the beginning of the next epoch."""
        return replace(self, epoch=self.epoch + 1, consumed=0)


@dataclass(frozen=True)
class Part:
    """One rank's part of one batch.

    Attributes:
        indices: int64, the numbers of its samples; may be empty.
        weight: of this rank's mean over its samples: samples here * size / samples of the batch.
            The average over the ranks of the weighted means is then the mean over the batch.
        factor: for each of its samples, if the average itself is weighted by the ranks' numbers of
            samples. It is 1, unless a rank has no sample and loads one: then that sample counts 0,
            and the others more, because the weighted average includes it.
    """

    indices: Any
    weight: float
    factor: float = 1.0


@dataclass(frozen=True)
class Pass:
    """The rest of an epoch, divided among ranks: the samples of each rank in each step.

    Attributes:
        start: where it begins.
        order: the result of `start.order()`.
        batch: samples of a step, on all ranks together.
        rank: the rank whose parts these are.
        size: the number of ranks.
        drop_remainder: leave out samples that do not fill a batch.
    """

    start: Cursor
    order: Any = field(repr=False, compare=False)
    batch: int
    rank: int
    size: int
    drop_remainder: bool = False

    @property
    def steps(self) -> int:
        """The number of batches."""
        left = self.start.left
        return left // self.batch if self.drop_remainder else math.ceil(left / self.batch)

    def part(self, step: int) -> Part:
        """Returns this rank's part of a batch; ranks' parts differ by one sample at most.

        Args:
            step: counted from the start of this pass.

        Raises:
            IndexError: there is no such step.
        """
        samples = self._samples(step)
        first = len(samples) * self.rank // self.size
        mine = samples[first : len(samples) * (self.rank + 1) // self.size]
        return Part(
            mine.astype(np.int64),
            weight=len(mine) * self.size / len(samples),
            factor=max(1.0, self.size / len(samples)),
        )

    def loadable(self, step: int) -> Part:
        """Returns `part(step)`; if that is empty, one sample of another rank with weight 0.

        A mean over no samples is NaN, and so is 0 times that.

        Args:
            step: counted from the start of this pass.

        Raises:
            IndexError: there is no such step.
        """
        part = self.part(step)
        if len(part.indices) == 0:
            part = Part(self._samples(step)[:1].astype(np.int64), weight=0.0, factor=0.0)
        return part

    def after(self, steps: int) -> Cursor:
        """Returns the place after this many steps; steps beyond the end do not count."""
        done = min(steps, self.steps) * self.batch
        return self.start.at(min(self.start.samples, self.start.consumed + done))

    def _samples(self, step: int) -> Any:
        if not 0 <= step < self.steps:
            raise IndexError(f"there is no batch {step}: this epoch has {self.steps} left")
        first = self.start.consumed + step * self.batch
        return self.order[first : first + self.batch]
