"""Combines the records of all ranks: the times of each call on one clock."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from tfring.observe.recorder.gradients import Series, find_gradient_calls
from tfring.observe.recorder.job import JobRecords
from tfring.observe.recorder.reader import Call, Plan, Record
from tfring.observe.recorder.steps import Steps, align_steps, steps_of

Key = tuple[Series, int]


@dataclass(frozen=True)
class Moments:
    """One call of one rank. Times are nanoseconds of the common clock; 0: not yet, or unknown.

    Attributes:
        call: As in its record.
        rank: Whose call it is.
        submitted: The program called.
        asked_but_one: All ranks but the last had asked rank 0 for it.
        asked: All had.
        last_rank: The rank that asked last; -1: unknown.
        planned: The plan came.
        started: The plan's first bytes could move; before, the plan was queued.
        finished: The plan had ended.
        ended: The program got the result.
    """

    call: Call
    rank: int
    submitted: int
    asked_but_one: int
    asked: int
    last_rank: int
    planned: int
    started: int
    finished: int
    ended: int


class JobMoments:
    """All calls of a job on the common clock.

    Attributes:
        job: The records.
        steps: By rank, and by series and number.
        series: All that there are.
        calls: Of the steps, likewise, in the order in which they were submitted.
    """

    def __init__(self, job: JobRecords) -> None:
        """Reads the records."""
        self.job = job
        self._plans: dict[tuple[int, int], Plan] = {
            (rank, plan.sequence): plan
            for rank, record in job.records.items()
            for plan in record.plans
        }
        # Rank 0 alone knows when ranks asked, of the calls in which it takes part.
        self._asked = {
            (call.sequence, call.name): (rank, call)
            for rank, record in job.records.items()
            for call in record.calls
            if call.sequence and call.last_rank >= 0
        }
        own = {rank: steps_of(record.raw_calls) for rank, record in job.records.items()}
        same = align_steps(own)
        self.steps = {
            rank: {(step.series, step.number): step for step in steps}
            for rank, steps in same.items()
        }
        self.series = {series for steps in self.steps.values() for series, _ in steps}
        self.calls = {
            rank: _calls_of_steps(record, own[rank], same[rank])
            for rank, record in job.records.items()
        }

    def of(self, rank: int, call: Call) -> Moments:
        """Returns the times of a call of a rank."""
        common = self.job.common
        where, asked = self._asked.get((call.sequence, call.name), (rank, None))
        plan = self._plans.get((rank, call.sequence)) if call.sequence else None
        return Moments(
            call=call,
            rank=rank,
            submitted=common(rank, call.submitted),
            asked_but_one=common(where, asked.second_last_asked) if asked else 0,
            asked=common(where, asked.last_asked) if asked else 0,
            last_rank=asked.last_rank if asked else -1,
            planned=common(rank, call.planned),
            started=common(rank, plan.started) if plan else 0,
            finished=common(rank, plan.ended) if plan else 0,
            ended=common(rank, call.ended),
        )


def _calls_of_steps(record: Record, own: Steps, same: Steps) -> dict[Key, list[Call]]:
    """Returns the calls of the steps in `same`, which `own` has with its own numbers."""
    names = [own.names[series] for series in own.series.tolist()]
    counted = zip(names, own.number.tolist(), same.number.tolist(), strict=True)
    key_of = {(name, number): (name, common) for name, number, common in counted}
    by_number = {call.number: call for call in record.calls}
    found = find_gradient_calls(record.raw_calls)
    numbers = record.raw_calls["number"][found.at].tolist()
    calls: dict[Key, list[Call]] = defaultdict(list)
    for series, step, number in zip(
        found.which.tolist(), found.number.tolist(), numbers, strict=True
    ):
        key = key_of.get((found.series[series], step))
        if key is not None:  # a step that was partly overwritten is left out
            calls[key].append(by_number[number])
    for of_step in calls.values():
        of_step.sort(key=lambda call: call.submitted)
    return calls
