"""Training steps, found in the calls of a record.

Gradients are cut into buckets, and each bucket is one call per step: the n-th call of a bucket
belongs to the n-th step. That needs no help from the program.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from tfring.recorder.layout import CallFlags
from tfring.recorder.reader import Call, Record


@dataclass(frozen=True)
class Step:
    """The communication of one rank in one step. Times as in its record.

    Attributes:
        number: From 1 on.
        calls: Of its buckets, in the order in which they were submitted.
    """

    number: int
    calls: tuple[Call, ...]

    @property
    def begin(self) -> int:
        """When the first bucket was ready."""
        return min(call.submitted for call in self.calls)

    @property
    def last_ready(self) -> int:
        """When the last bucket was ready: from here on there is nothing left to compute."""
        return max(call.submitted for call in self.calls)

    @property
    def end(self) -> int:
        """When the last bucket had been reduced; 0: not yet."""
        ends = [call.ended for call in self.calls]
        return 0 if 0 in ends else max(ends)

    @property
    def exposed(self) -> int:
        """Nanoseconds of communication that no computation of the backward pass hid."""
        return max(0, self.end - self.last_ready)

    @property
    def bytes(self) -> int:
        """Of the gradients."""
        return sum(call.bytes for call in self.calls)


def steps_of(record: Record) -> list[Step]:
    """Returns the steps whose calls the record still has, the oldest first.

    The oldest is left out where some of its calls have been overwritten.
    """
    by_step: dict[tuple[int, int], list[Call]] = defaultdict(list)
    for call in record.calls:
        if call.flags & CallFlags.BUCKET and call.invocation:
            by_step[call.process_set, call.invocation].append(call)
    most = max(map(len, by_step.values()), default=0)
    steps = [
        Step(number, tuple(sorted(calls, key=lambda call: call.submitted)))
        for (_, number), calls in sorted(by_step.items())
    ]
    if steps and steps[0].number > 1 and len(steps[0].calls) < most:
        return steps[1:]
    return steps
