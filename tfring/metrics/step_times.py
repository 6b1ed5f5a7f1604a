"""Where the time of training steps went, from the calls of a record.

A step is the n-th call of every gradient bucket, as in tfring/recorder/steps.py; here the calls are
rows of an array, because this runs inside a rank that trains.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tfring.recorder.layout import CallFlags


@dataclass(frozen=True)
class StepTimes:
    """The communication of one step on this rank. Times are nanoseconds.

    Attributes:
        process_set: Of the gradients.
        number: Of the step, from 1 on.
        begin: When the first bucket was ready.
        last_ready: When the last bucket was ready: from here on nothing was left to compute.
        end: When the last bucket had been reduced.
        communication: For how long at least one bucket was under way.
        waiting: For how long, after the last bucket was ready, none was under way: this rank waited
            for ranks that had not asked for one yet.
        bytes: Of the gradients.
    """

    process_set: int
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
    invocation: int
    submitted: int
    planned: int
    ended: int
    bytes: int


def newest_step(calls: np.ndarray[Any, Any]) -> int:
    """Returns the number of the newest step that has begun; 0: none.

    Args:
        calls: Of a record, an array of layout.CALL.
    """
    found = calls["invocation"][_buckets(calls)]
    return int(found.max()) if len(found) else 0


def new_steps(
    calls: np.ndarray[Any, Any], seen: dict[int, int], all_are_over: bool
) -> list[StepTimes]:
    """Returns the steps that are over, and notes in `seen` that they were returned.

    The oldest is left out where some of its calls have been overwritten.

    Args:
        calls: Of a record, an array of layout.CALL.
        seen: By process set, the number of the last step that was returned before.
        all_are_over: Whether no bucket of the newest step is still to come, as between two epochs.
            Otherwise a step is over when the next one has begun.
    """
    steps: list[StepTimes] = []
    buckets = calls[_buckets(calls)]
    for process_set in np.unique(buckets["process_set"]).tolist():
        own = buckets[buckets["process_set"] == process_set]
        numbers, counts = np.unique(own["invocation"], return_counts=True)
        oldest, newest, most = int(numbers[0]), int(numbers[-1]), int(counts.max())
        groups = _by_step(own[own["invocation"] > seen.get(process_set, 0)])
        for number, rows in sorted(groups.items()):
            if (number == newest and not all_are_over) or not all(row.ended for row in rows):
                break
            if number > oldest or number == 1 or len(rows) == most:
                steps.append(_times(process_set, number, rows))
            seen[process_set] = number
    return steps


def _buckets(calls: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = (calls["flags"] & CallFlags.BUCKET != 0) & (
        calls["invocation"] != 0
    )
    return found


def _by_step(calls: np.ndarray[Any, Any]) -> dict[int, list[_Row]]:
    """Returns the calls of one process set's buckets, by the number of the step."""
    found: dict[int, list[_Row]] = {}
    for values in zip(*(calls[column].tolist() for column in _Row._fields), strict=True):
        row = _Row(*values)
        found.setdefault(row.invocation, []).append(row)
    return found


def _times(process_set: int, number: int, rows: list[_Row]) -> StepTimes:
    last_ready = max(row.submitted for row in rows)
    end = max(row.ended for row in rows)
    under_way = list(_union((row.planned or row.ended, row.ended) for row in rows))
    hidden_from = max(0, end - last_ready)
    exposed_and_under_way = sum(max(0, b - max(a, last_ready)) for a, b in under_way)
    return StepTimes(
        process_set=process_set,
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
