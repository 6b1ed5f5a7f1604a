"""The training steps in the calls of one rank, as arrays.

A step is the n-th call of every gradient bucket, as in tfring/recorder/steps.py. Here the calls are
not made into objects, so that a callback can look at new calls while it trains.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tfring.recorder.layout import KINDS, CallFlags

Array = np.ndarray[Any, Any]
_REDUCES = (KINDS.index("allreduce"), KINDS.index("reducescatter"))


@dataclass(frozen=True)
class StepTimes:
    """Steps of one rank, the oldest first; times in nanoseconds of its clock.

    Attributes:
        number: Which step it is, from 1 on.
        began: When the step before had ended; 0 where that is not known.
        ready: When the last bucket was there: nothing is left to compute before the update.
        end: When the last bucket had been reduced.
        communicating: For so long at least one bucket was being reduced.
        exposed: So much of that came after `ready`, so that no computation hid it.
        bytes: Of the gradients.
        asked: On rank 0: when the last rank had asked for the last bucket; 0: not known.
        asked_before: On rank 0: when the last but one had.
        last_rank: On rank 0: which rank was the last; -1: not known.
    """

    number: Array
    began: Array
    ready: Array
    end: Array
    communicating: Array
    exposed: Array
    bytes: Array
    asked: Array
    asked_before: Array
    last_rank: Array

    def __len__(self) -> int:
        return len(self.number)

    @property
    def own(self) -> Array:
        """The rank's own work: from the end of the step before until its last bucket was ready."""
        own: Array = np.maximum(0, self.ready - self.began)
        return own

    def take(self, chosen: Array) -> StepTimes:
        """Returns some of the steps.

        Args:
            chosen: A mask or positions.
        """
        return StepTimes(**{name: values[chosen] for name, values in vars(self).items()})


def step_times(raw_calls: Array) -> StepTimes:
    """Returns the steps that are complete in these calls.

    Args:
        raw_calls: An array of layout.CALL, in any order, as Record.raw_calls.

    Returns:
        Steps of the process set and of the buckets that were called last. A program that begins to
        train with other buckets, for another model or with another layout, begins to count anew.
        Steps with a call that has not ended, or has failed, are left out.
    """
    calls = _buckets(raw_calls)
    if len(calls) == 0:
        nothing = np.zeros(0, dtype=np.int64)
        return StepTimes(*[nothing] * 10)
    calls = calls[np.argsort(calls["planned"], kind="stable")]
    number, step = np.unique(calls["invocation"].astype(np.int64), return_inverse=True)
    count = np.bincount(step)
    ready = _most(calls["submitted"], step, len(number))
    end = _most(calls["ended"], step, len(number))
    asked = _most(calls["last_asked"], step, len(number))
    bad = np.bincount(step, (calls["ended"] == 0) | (calls["status"] != 0)) > 0
    last = np.zeros(len(number), dtype=np.int64)  # the call that was asked for last
    order = np.argsort(calls["last_asked"], kind="stable")
    last[step[order]] = order
    before = np.maximum.accumulate(calls["ended"])
    free = np.maximum(calls["planned"], np.concatenate([[0], before[:-1]]))
    began = np.concatenate([[0], np.where(np.diff(number) == 1, end[:-1], 0)])
    times = StepTimes(
        number=number,
        began=began,
        ready=ready,
        end=end,
        communicating=_length(free, calls["ended"], step),
        exposed=_length(np.maximum(free, ready[step]), calls["ended"], step),
        bytes=np.bincount(step, calls["bytes"]).astype(np.int64),
        asked=asked,
        asked_before=np.where(asked > 0, calls["second_last_asked"][last], 0),
        last_rank=np.where(asked > 0, calls["last_rank"][last], -1),
    )
    # What is usual, so that a step more or less with another bucket does not count.
    return times.take((count == np.bincount(count).argmax()) & ~bad)


def _buckets(raw_calls: Array) -> Array:
    """Returns the calls of the gradient buckets that are in use."""
    wanted = (raw_calls["flags"] & int(CallFlags.BUCKET) != 0) & (raw_calls["invocation"] > 0)
    # What compares the layouts of variables has the flag, too.
    calls: Array = raw_calls[wanted & np.isin(raw_calls["kind"], _REDUCES)]
    if len(calls) == 0:
        return calls
    calls = calls[calls["process_set"] == calls["process_set"][np.argmax(calls["submitted"])]]
    _, name = np.unique(calls["name"], return_inverse=True)
    first = np.full(name.max() + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, name, calls["submitted"])
    last = _most(calls["submitted"], name, len(first))
    newest = np.argsort(-last)
    # From the newest bucket back, as long as buckets were called at the same time.
    since = np.minimum.accumulate(first[newest])
    together = np.concatenate([[True], np.cumprod(last[newest][1:] >= since[:-1]) > 0])
    used: Array = calls[np.isin(name, newest[together])]
    return used


def _most(values: Array, group: Array, groups: int) -> Array:
    found = np.zeros(groups, dtype=np.int64)
    np.maximum.at(found, group, values)
    return found


def _length(begin: Array, end: Array, group: Array) -> Array:
    length: Array = np.bincount(group, np.maximum(0, end - begin))
    whole: Array = length.astype(np.int64)
    return whole
