"""Where training is in its data, and which samples each rank gets next. Pure: nothing of a job.

The state is a few numbers. The order of an epoch follows from the seed and the epoch, the next
batch is what follows the samples that are consumed, and a rank's part of it follows from its rank
and the size. So a job can change its size after any step, and each sample is in exactly one step
of each epoch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

SAME = ("samples", "seed", "shuffle")  # of a place within an epoch and of the data it is used for


def permutation(samples: int, seed: int, epoch: int) -> Any:
    """Returns all numbers below `samples` in an order that is the same in every process.

    Each number gets random high bits, and the numbers are sorted by them: the bits of Philox and a
    sort are the same in all versions of NumPy and on all machines, which the methods of its
    Generator do not promise. A job may be resumed years later. (Philox: Salmon et al., "Parallel
    random numbers: as easy as 1, 2, 3", 2011.)

    Args:
        samples: how many, below 2**40.
        seed: at least 0.
        epoch: at least 0; another order for each.

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
        samples: how many the data has.
        seed: of the order.
        shuffle: whether epochs are shuffled; otherwise samples come by their numbers.
        epoch: counted from 0.
        consumed: samples of this epoch that are in steps that are done.
    """

    samples: int
    seed: int = 0
    shuffle: bool = True
    epoch: int = 0
    consumed: int = 0

    @property
    def left(self) -> int:
        """The samples of this epoch that are not consumed."""
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
            ValueError: it is within an epoch of other samples, or of another order.
        """
        consumed = state.get("consumed", -1)
        if consumed in (0, state.get("samples")):
            return replace(self, epoch=state["epoch"] + (consumed != 0), consumed=0)
        for name in SAME:
            if state.get(name) != getattr(self, name):
                raise ValueError(
                    f"the saved state is of data with {name}={state.get(name)}, and here it is "
                    f"{getattr(self, name)}. Give the data that there was when the state was "
                    "saved, or go on from the end of an epoch"
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
        indices: int64, the numbers of its samples; there may be none.
        weight: of this rank's mean over its samples, so that the average over the ranks of the
            weighted means is the mean over the batch: samples here * size / samples of the batch.
        factor: for each of its samples, if the average itself is weighted by the ranks' numbers of
            samples. 1, unless some ranks have no sample and load one: then that counts 0, and the
            others more, for the weighted average counts it.
    """

    indices: Any
    weight: float
    factor: float = 1.0


@dataclass(frozen=True)
class Pass:
    """The rest of an epoch, dealt out to a number of ranks: what each gets in each step.

    Attributes:
        start: where it begins.
        order: what `start.order()` returned.
        batch: samples of a step, on all ranks together.
        rank: whose parts these are.
        size: the number of ranks.
        drop_remainder: whether what fills no batch is left out.
    """

    start: Cursor
    order: Any = field(repr=False, compare=False)
    batch: int
    rank: int
    size: int
    drop_remainder: bool = False

    @property
    def steps(self) -> int:
        """How many batches there are."""
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
        """Returns `part(step)`; where that has no sample, one of another rank with weight 0.

        A mean over no samples is no number, and 0 times that is none either.

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
        """Returns the place after so many of these steps; those that do not exist count nothing."""
        done = min(steps, self.steps) * self.batch
        return self.start.at(min(self.start.samples, self.start.consumed + done))

    def _samples(self, step: int) -> Any:
        if not 0 <= step < self.steps:
            raise IndexError(f"there is no batch {step}: {self.steps} are left of this epoch")
        first = self.start.consumed + step * self.batch
        return self.order[first : first + self.batch]
