"""Finds the training steps in the calls of one rank; gradients.py says what a step is.

It works on arrays, because it also runs inside a rank that trains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from tfring.observe.recorder.gradients import Array, Series, find_gradient_calls


@dataclass(frozen=True)
class Steps:
    """Steps of one rank, by series and number; times in nanoseconds of its clock.

    Attributes:
        names: All series.
        series: Of each step: the position of its series.
        number: Which step it is, from 1 on in each series.
        began: When the step before, of the same series, ended; 0: unknown.
        first: When the first bucket was ready.
        ready: When the last bucket was ready: nothing is left to compute before the update.
        end: When the last bucket was reduced; 0: not yet.
        communicating: How long at least one bucket was being reduced.
        waiting: How long, after `ready`, no bucket was being reduced: this rank waited for other
            ranks.
        bytes: Of the gradients.
        buckets: The number of calls, without those that move rows of sparse gradients.
        call: The smallest number of a call.
        plan: The smallest number of a plan, by which all ranks know the step; 0: it has none yet.
        failed: Whether a call ended with an error.
        asked: On rank 0: when the last rank asked for the last bucket; 0: unknown.
        asked_before: On rank 0: when the last but one rank did.
        last_rank: On rank 0: the rank that asked last; -1: unknown.
    """

    names: tuple[Series, ...]
    series: Array
    number: Array
    began: Array
    first: Array
    ready: Array
    end: Array
    communicating: Array
    waiting: Array
    bytes: Array
    buckets: Array
    call: Array
    plan: Array
    failed: Array
    asked: Array
    asked_before: Array
    last_rank: Array

    def __len__(self) -> int:
        return len(self.number)

    @property
    def exposed(self) -> Array:
        """From `ready` to `end`: waiting and communication that no computation hid."""
        exposed: Array = np.maximum(0, self.end - self.ready)
        return exposed

    def take(self, chosen: Array) -> Steps:
        """Returns the steps that a mask or positions choose."""
        values = {name: value for name, value in vars(self).items() if name != "names"}
        return Steps(self.names, **{name: value[chosen] for name, value in values.items()})

    def good(self) -> Steps:
        """Returns the steps that ended without an error."""
        return self.take((self.end > 0) & ~self.failed)


def steps_of(calls: Array, all_are_over: bool = False) -> Steps:
    """Returns the steps in an array of layout.CALL, in any order.

    The oldest step of a series is left out if some of its calls were overwritten. The newest step
    has not ended while it has fewer buckets than others, unless `all_are_over`: no bucket is still
    to come.
    """
    found = find_gradient_calls(calls)
    calls = calls[found.at]
    # A call without a plan has not run.
    begun = np.where(calls["planned"] > 0, calls["planned"], calls["ended"])
    order = np.lexsort((begun, found.number, found.which))
    calls, begun = calls[order], begun[order]
    series, number = found.which[order], found.number[order]
    bucket, leads = found.bucket[order], found.leads[order]
    begins = np.ones(len(calls), dtype=bool)
    begins[1:] = (np.diff(series) != 0) | (np.diff(number) != 0)
    starts, step = np.flatnonzero(begins), np.cumsum(begins) - 1
    series, number = series[starts], number[starts]
    if len(starts) == 0:
        nothing = np.zeros(0, dtype=np.int64)
        rest = {each.name: nothing for each in fields(Steps)[1:]}
        return Steps((), **{**rest, "failed": nothing.astype(bool)})
    count = np.add.reduceat(bucket.astype(np.int64), starts)
    first_of, last_of = _ends(series)
    missing = count < np.maximum.reduceat(count, np.flatnonzero(first_of))[series]
    end = np.maximum.reduceat(calls["ended"], starts)
    follows = ~first_of & (number == np.roll(number, 1) + 1)
    began = np.where(follows, np.roll(end, 1), 0)
    unfinished = last_of & missing & (not all_are_over)
    end[(np.minimum.reduceat(calls["ended"], starts) == 0) | unfinished] = 0
    ready = np.maximum.reduceat(np.where(leads, calls["submitted"], 0), starts)
    communicating, late = _under_way(begun, calls["ended"], ready, starts, step)
    steps = Steps(
        names=found.series,
        series=series,
        number=number,
        began=began,
        first=np.minimum.reduceat(calls["submitted"], starts),
        ready=ready,
        end=end,
        communicating=communicating,
        waiting=np.maximum(0, end - ready - late),
        bytes=np.add.reduceat(calls["bytes"], starts),
        buckets=count,
        call=np.minimum.reduceat(calls["number"], starts).astype(np.int64),
        plan=_smallest_plans(calls, starts),
        failed=np.logical_or.reduceat(calls["status"] != 0, starts),
        **_asked(calls, np.where(leads, calls["last_asked"], 0), starts, step),
    )
    return steps.take(~(first_of & missing))


def align_steps(found: Mapping[int, Steps]) -> dict[int, Steps]:
    """Returns the steps of several ranks, by rank, with the same number for the same step.

    Each rank counts its own calls. While one has joined, the others go on, and the numbers that it
    counts afterwards are too small.
    """
    shifts = {rank: np.zeros(len(steps), dtype=np.int64) for rank, steps in found.items()}
    for name in {name for steps in found.values() for name in steps.names}:
        own = {
            rank: np.flatnonzero(steps.series == steps.names.index(name))
            for rank, steps in found.items()
            if name in steps.names
        }
        plans = np.concatenate([found[rank].plan[at] for rank, at in own.items()])
        numbers = np.concatenate([found[rank].number[at] for rank, at in own.items()])
        known, counted = _count(plans, numbers)
        for rank, at in own.items():
            plan, number = found[rank].plan[at], found[rank].number[at]
            planned = np.flatnonzero(plan > 0)
            if len(planned) == 0:
                continue
            shift = counted[np.searchsorted(known, plan[planned])] - number[planned]
            # What has no plan yet is counted on from what has one.
            latest = np.searchsorted(planned, np.arange(len(at)), side="right") - 1
            shifts[rank][at] = shift[np.maximum(latest, 0)]
    return {
        rank: replace(steps, number=steps.number + shifts[rank]) for rank, steps in found.items()
    }


def _count(plans: Array, numbers: Array) -> tuple[Array, Array]:
    """Returns the plans of steps in order, and the number of the step of each.

    Args:
        plans: Of the steps of all ranks; 0 if a step has none.
        numbers: Of these steps, as their ranks count them.
    """
    known, place = np.unique(plans[plans > 0], return_inverse=True)
    counted = np.zeros(len(known), dtype=np.int64)
    np.maximum.at(counted, place.reshape(-1), numbers[plans > 0])
    # Each is one more than the one before, also where the rank that had counted most has joined.
    order = np.arange(len(known))
    return known, np.maximum.accumulate(counted - order) + order


def take_new_steps(calls: Array, seen: dict[Series, int], all_are_over: bool) -> tuple[Steps, int]:
    """Returns the steps that are over and not in `seen` yet, and how many steps have begun.

    Args:
        calls: Of a record, an array of layout.CALL.
        seen: By series, the number of the last step that was returned; this updates it.
        all_are_over: Whether no bucket of the newest step is still to come, as between two batches.
            Otherwise a step is over when the next one of its series has begun.
    """
    steps = steps_of(calls, all_are_over)
    new = np.zeros(len(steps), dtype=bool)
    begun = dict(seen)
    for position, name in enumerate(steps.names):
        own = np.flatnonzero(steps.series == position)
        if len(own) == 0:
            continue
        begun[name] = int(steps.number[own[-1]])
        if not all_are_over:
            own = own[:-1]
        own = own[np.logical_and.accumulate(_over_or_seen(steps, own, seen.get(name, 0)))]
        own = own[steps.number[own] > seen.get(name, 0)]
        new[own] = True
        if len(own):
            seen[name] = int(steps.number[own[-1]])
    return steps.take(new), sum(begun.values())


def _smallest_plans(calls: Array, starts: Array) -> Array:
    none = np.iinfo(np.int64).max
    plans = calls["sequence"].astype(np.int64)
    smallest = np.minimum.reduceat(np.where(plans > 0, plans, none), starts)
    return np.where(smallest == none, 0, smallest)


def _over_or_seen(steps: Steps, own: Array, seen: int) -> Array:
    over: Array = (steps.end[own] > 0) | (steps.number[own] <= seen)
    return over


def _ends(series: Array) -> tuple[Array, Array]:
    """Returns masks of the first and the last steps of each series."""
    changes = np.diff(series) != 0
    return np.concatenate([[True], changes]), np.concatenate([changes, [True]])


def _under_way(
    begun: Array, ended: Array, ready: Array, starts: Array, step: Array
) -> tuple[Array, Array]:
    """Returns for how long at least one call of each step ran: in all, and after `ready`.

    Args:
        begun: Of each call, by step, ascending in each.
        ended: Of each call.
        ready: Of each step.
        starts: Where the calls of each step begin.
        step: Of each call.
    """
    # The latest end among the calls of the same step so far: places in the order of all ends, with
    # those of later steps above those of earlier ones.
    order = np.argsort(ended, kind="stable")
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    above = step.astype(np.int64) * len(order)
    latest = ended[order][np.maximum.accumulate(place + above) - above]
    free = np.concatenate([[0], latest[:-1]])
    free[starts] = 0
    begun = np.maximum(begun, free)
    whole = np.add.reduceat(np.maximum(0, ended - begun), starts)
    late = np.maximum(0, ended - np.maximum(begun, ready[step]))
    return whole, np.add.reduceat(late, starts)


def _asked(calls: Array, asked: Array, starts: Array, step: Array) -> dict[str, Any]:
    """Returns what rank 0 knows of the bucket of each step that was asked for last.

    Args:
        calls: All, by step.
        asked: Of each first call of a bucket: when the last rank asked for it.
        starts: Where the calls of each step begin.
        step: Of each call.
    """
    order = np.lexsort((asked, step))
    last = order[np.append(starts[1:], len(calls)) - 1]
    known = asked[last] > 0
    return {
        "asked": asked[last],
        "asked_before": np.where(known, calls["second_last_asked"][last], 0),
        "last_rank": np.where(known, calls["last_rank"][last], -1),
    }
