"""Where the time of training steps went, from the calls of a record.

A step is one reduction of the gradients of an optimizer or a tape: the n-th call of every one of
its buckets. So two optimizers that are used in turn have steps of their own, and those of a second
model begin at 1. Calls are rows of an array here, because this runs inside a rank that trains.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tfring.recorder.layout import CallFlags

# The name of a bucket's call: that of the reduction, the bucket's number, and which part of it.
_BUCKET = re.compile(r"(.*?)\.\d+(?:\.[a-z_]\w*)*")
# What optimizers reduce besides gradients, in the same way: see tfring/keras/hook.py.
_NO_GRADIENTS = (".finite", ".scale", ".overwrite")
# Without tf.function every reduction has a name of its own, with the next number.
_EAGER = re.compile(r"(.*\.eager\..*)\.(\d+)")

# Which steps are counted together: the process set, and the name of the reduction.
Series = tuple[int, str]


@dataclass(frozen=True)
class StepTimes:
    """The communication of one step on this rank. Times are nanoseconds.

    Attributes:
        series: Of the gradients: their process set, and what is common to their buckets' names.
        number: Of the step, from 1 on in each series.
        begin: When the first bucket was ready.
        last_ready: When the last bucket was ready: from here on nothing was left to compute.
        end: When the last bucket had been reduced.
        communication: For how long at least one bucket was under way.
        waiting: For how long, after the last bucket was ready, none was under way: this rank waited
            for ranks that had not asked for one yet.
        bytes: Of the gradients.
    """

    series: Series
    number: int
    begin: int
    last_ready: int
    end: int
    communication: int
    waiting: int
    bytes: int

    @property
    def exposed(self) -> int:
        """Nanoseconds of waiting and communication that no computing of gradients hid."""
        return max(0, self.end - self.last_ready)


class _Row(NamedTuple):
    submitted: int
    planned: int
    ended: int
    bytes: int


def steps_of_calls(calls: np.ndarray[Any, Any]) -> list[tuple[Series, int] | None]:
    """Returns the series and the number of the step of each call; None: it is of no gradients.

    Args:
        calls: Of a record, an array of layout.CALL.
    """
    wanted = (calls["flags"] & CallFlags.BUCKET != 0) & (calls["invocation"] != 0)
    steps: list[tuple[Series, int] | None] = []
    columns = (wanted, calls["name"], calls["process_set"], calls["invocation"])
    for is_bucket, name, process_set, count in zip(*(c.tolist() for c in columns), strict=True):
        reduction = _reduction(name) if is_bucket else None
        if reduction is None:
            steps.append(None)
        else:
            steps.append(((process_set, reduction[0]), reduction[1] + count))
    return steps


def new_steps(
    calls: np.ndarray[Any, Any], seen: dict[Series, int], all_are_over: bool
) -> tuple[list[StepTimes], int]:
    """Returns the steps that are over, and notes in `seen` that they were returned.

    A series' oldest step is left out where some of its calls have been overwritten.

    Args:
        calls: Of a record, an array of layout.CALL.
        seen: By series, the number of the last step that was returned before.
        all_are_over: Whether no bucket of the newest step is still to come, as between two batches.
            Otherwise a step is over when the next one of its series has begun.

    Returns:
        The steps, those of each series in order; and how many have begun, of all series with calls
        here or in `seen`.
    """
    found: dict[Series, dict[int, list[int]]] = {}
    for at, step in enumerate(steps_of_calls(calls)):
        if step is not None:
            found.setdefault(step[0], {}).setdefault(step[1], []).append(at)
    begun = {**seen, **{series: max(groups) for series, groups in found.items()}}
    steps: list[StepTimes] = []
    for series, groups in found.items():
        oldest, most = min(groups), max(map(len, groups.values()))
        for number in sorted(number for number in groups if number > seen.get(series, 0)):
            rows = _rows(calls[groups[number]])
            newest = number == begun[series] and not all_are_over
            if newest or not all(row.ended for row in rows):
                break
            if number > oldest or number == 1 or len(rows) == most:
                steps.append(_times(series, number, rows))
            seen[series] = number
    return steps, sum(begun.values())


@functools.lru_cache(maxsize=1024)
def _reduction(name: bytes) -> tuple[str, int] | None:
    """Returns the reduction that a bucket's call belongs to, and what to add to its count."""
    bucket = _BUCKET.fullmatch(name.decode(errors="replace"))
    if bucket is None or bucket[1].endswith(_NO_GRADIENTS):
        return None
    eager = _EAGER.fullmatch(bucket[1])
    return (bucket[1], 0) if eager is None else (eager[1], int(eager[2]))


def _rows(calls: np.ndarray[Any, Any]) -> list[_Row]:
    columns = (calls[field].tolist() for field in _Row._fields)
    return [_Row(*values) for values in zip(*columns, strict=True)]


def _times(series: Series, number: int, rows: list[_Row]) -> StepTimes:
    last_ready = max(row.submitted for row in rows)
    end = max(row.ended for row in rows)
    under_way = list(_union((row.planned or row.ended, row.ended) for row in rows))
    hidden_from = max(0, end - last_ready)
    exposed_and_under_way = sum(max(0, b - max(a, last_ready)) for a, b in under_way)
    return StepTimes(
        series=series,
        number=number,
        begin=min(row.submitted for row in rows),
        last_ready=last_ready,
        end=end,
        communication=sum(b - a for a, b in under_way),
        waiting=max(0, hidden_from - exposed_and_under_way),
        bytes=sum(row.bytes for row in rows),
    )


def _union(spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Returns spans that do not overlap and cover the same times, in order."""
    begin = end = 0
    for a, b in sorted(spans):
        if a > end:
            if end > begin:
                yield begin, end
            begin = a
        end = max(end, b)
    if end > begin:
        yield begin, end
