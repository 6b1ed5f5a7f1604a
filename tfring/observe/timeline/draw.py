"""Draws a timeline from the records of a job: a process for each rank, all on one clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfring.observe.recorder.gradients import Series, find_gradient_calls
from tfring.observe.recorder.job import JobRecords
from tfring.observe.recorder.reader import Call, Event, Plan, Record, find_last_sign
from tfring.observe.recorder.steps import align_steps, steps_of
from tfring.observe.timeline.phases import KINDS, NO_PHASES, Phases
from tfring.observe.timeline.trace import Trace

# This many names of a rank have a lane; the calls of the others share one.
NAMED_LANES = 40
_EXPOSED = "exposed communication"
# The prefix of tfring's own collectives: comparisons, metrics, gradients.
_OURS = "tfring."


@dataclass(frozen=True)
class _Moments:
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


class _Job:
    """All calls of a job on the common clock.

    Attributes:
        records: Of its ranks.
        steps: By rank, with the same number for the same step.
        series: Which steps are counted together, on any rank.
    """

    def __init__(self, records: JobRecords) -> None:
        self.records = records
        self._plans: dict[tuple[int, int], Plan] = {
            (rank, plan.sequence): plan
            for rank, record in records.records.items()
            for plan in record.plans
        }
        # Rank 0 alone knows when ranks asked, of the calls in which it takes part.
        self._asked = {
            (call.sequence, call.name): (rank, call)
            for rank, record in records.records.items()
            for call in record.calls
            if call.sequence and call.last_rank >= 0
        }
        self.steps = align_steps(
            {rank: steps_of(record.raw_calls) for rank, record in records.records.items()}
        )
        self.series = {name for steps in self.steps.values() for name in steps.names}

    def of(self, rank: int, call: Call) -> _Moments:
        """Returns the times of a call of a rank."""
        common = self.records.common
        where, asked = self._asked.get((call.sequence, call.name), (rank, None))
        plan = self._plans.get((rank, call.sequence)) if call.sequence else None
        return _Moments(
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


def draw(job: JobRecords, phases: Mapping[int, Phases] | None = None) -> Trace:
    """Returns the timeline of a job.

    Args:
        job: The records of its ranks.
        phases: What `fit` did when, by rank, if it was noted.
    """
    known = _Job(job)
    trace = Trace(_origin(job), _facts(job))
    for rank, record in job.records.items():
        _Rank(trace, known, rank).draw(record, (phases or {}).get(rank, NO_PHASES))
    return trace


def _origin(job: JobRecords) -> int:
    times = [
        job.common(rank, time)
        for rank, record in job.records.items()
        for time in (
            *(call.submitted for call in record.calls),
            *(event.time for event in record.events),
            *([] if record.calls or record.events else [record.header["started_monotonic"]]),
        )
    ]
    return min(times)


def _facts(job: JobRecords) -> dict[str, Any]:
    clocks = {
        f"rank {rank}": {
            "offset_us": clock.offset / 1000,
            "drift_ppm": clock.drift * 1e6,
            "error_us": None if clock.error is None else clock.error / 1000,
        }
        for rank, clock in job.clocks.items()
    }
    return {
        "job": job.job,
        "ranks": job.size,
        "missing_ranks": job.missing,
        "clock_of_rank": next(iter(job.records)),
        "clocks": clocks,
    }


def _steps_lane(series: Series, job: _Job) -> str:
    """Returns the lane of steps: "steps" if one optimizer is used by all ranks."""
    if len(job.series) == 1 and series[0] == 0:
        return "steps"
    of = f" in process set {series[0]}" if series[0] else ""
    return f"steps of {series[1]}{of}"


class _Rank:
    """Draws one rank."""

    def __init__(self, trace: Trace, job: _Job, rank: int) -> None:
        self._trace, self._job, self._rank = trace, job, rank
        self._process = rank + 1  # 0 would be an idle CPU
        self._last = job.records.common(rank, find_last_sign(job.records.records[rank]))

    def draw(self, record: Record, phases: Phases) -> None:
        name = f"rank {self._rank} ({record.host}, process {record.pid})"
        self._trace.process(self._process, name, _clock_text(self._job.records, self._rank))
        self._phases(phases)
        self._steps()
        self._events(record.events)
        named = _named(record)
        for name in named:
            self._trace.lane(self._process, name)
        for call in record.calls:
            self._call(self._job.of(self._rank, call), call.name in named)
        self._in_flight(record.calls)

    def _phases(self, phases: Phases) -> None:
        """Draws what `fit` does, how long it waits for input, and how long callbacks take."""
        common = self._job.records.common
        for lane in dict.fromkeys(lane for lane, _ in KINDS) if len(phases) else ():
            self._trace.lane(self._process, lane)
        # Of two that begin at once the one that holds the other comes first.
        for at in np.lexsort((phases["kind"], -phases["end"], phases["begin"])).tolist():
            begin, end, number, kind = phases[at].tolist()
            lane, name = KINDS[kind]
            self._trace.slice(
                self._process,
                self._trace.lane(self._process, lane),
                name.format(number),
                common(self._rank, begin),
                common(self._rank, end),
            )

    def _steps(self) -> None:
        """Draws steps, each from the end of the one before to its own end."""
        steps, common = self._job.steps[self._rank], self._job.records.common
        names = ("series", "number", "bytes", "buckets", "began", "first", "ready", "end")
        columns = [getattr(steps, name).tolist() for name in names]
        for series, number, size, buckets, *times in zip(*columns, strict=True):
            began, first, ready, end = (common(self._rank, time) for time in times)
            begin = began or first
            if not end or end < begin:
                continue
            lane = self._trace.lane(self._process, _steps_lane(steps.names[series], self._job))
            args = {"step": number, "bytes": size, "buckets": buckets}
            self._trace.slice(self._process, lane, f"step {number}", begin, end, args)
            for text, since, until in (
                ("before the first gradients", begin, first),
                ("gradients and communication", max(begin, first), ready),
                (_EXPOSED, max(begin, ready), end),
            ):
                if since < until:
                    self._trace.slice(self._process, lane, text, since, until, {"step": number})

    def _events(self, events: list[Event]) -> None:
        for event in events:
            lane = self._trace.lane(self._process, "events")
            time = self._job.records.common(self._rank, event.time)
            name = event.type.name.lower().replace("_", " ")
            if name == "mark":
                name = event.text
            args = {"text": event.text, "value": event.value, "status": event.code}
            self._trace.mark(self._process, lane, name, time, args)

    def _call(self, one: _Moments, named: bool) -> None:
        call, end = one.call, one.ended or max(self._last, one.submitted)
        if not named:
            whole = (f"{call.kind} {call.name}", one.submitted, end)
            parts = [whole, *_phases(one, end)]
            self._trace.overlapping(self._process, "others", parts, _about(one))
            return
        lane = self._trace.lane(self._process, call.name)
        # From the call that came last, and made the collective run, to what ran on all ranks.
        flow = f"{call.sequence}:{call.name}" if one.last_rank >= 0 else ""
        cause = flow if one.last_rank == self._rank else ""
        self._trace.slice(
            self._process, lane, call.kind, one.submitted, end, _about(one), flow_from=cause
        )
        for text, begin, until in _phases(one, end):
            flow_to = flow if text == "running" and not cause else ""
            self._trace.slice(self._process, lane, text, begin, until, flow_to=flow_to)

    def _in_flight(self, calls: list[Call]) -> None:
        common = self._job.records.common
        changes: Counter[int] = Counter()
        for call in calls:
            changes[common(self._rank, call.submitted)] += call.bytes
            if call.ended:
                changes[common(self._rank, call.ended)] -= call.bytes
        total = 0
        for time, change in sorted(changes.items()):
            total += change
            self._trace.counter(self._process, "in flight", "bytes", time, total)


def _named(record: Record) -> list[str]:
    """Returns the names that have a lane: gradients first, then the program's own."""
    count = Counter(call.name for call in record.calls)
    at = sorted(find_gradient_calls(record.raw_calls).at.tolist())
    gradients = dict.fromkeys(record.calls[place].name for place in at)
    others = [name for name, _ in count.most_common() if not name.startswith(_OURS)]
    return list(dict.fromkeys([*gradients, *others]))[:NAMED_LANES]


def _phases(one: _Moments, end: int) -> list[tuple[str, int, int]]:
    """Returns the phases of a call: name, begin, end; without a gap and never backwards."""
    if one.last_rank >= 0 and one.last_rank != one.rank:
        first = f"submitted, waits for rank {one.last_rank}"
    else:
        first = "submitted"
    known = [
        (first, one.asked or one.planned),
        ("negotiating", one.planned),
        ("queued", one.started),
        ("running", one.finished),
        ("finishing", one.ended),
    ]
    phases, begin = [], one.submitted
    for text, until in known:
        if not until:  # it is there now, or the call ended without it
            if not one.ended:
                phases.append((text, begin, end))
                break
            continue
        until = min(max(until, begin), end)
        if until > begin:
            phases.append((text, begin, until))
        begin = until
    return phases


def _about(one: _Moments) -> dict[str, Any]:
    call = one.call
    facts: dict[str, Any] = {
        "tensor": call.name,
        "bytes": call.bytes,
        "dtype": call.dtype,
        "shapes": " ".join(map(str, call.shapes)),
        "process_set": call.process_set,
        "plan": call.sequence,
        "invocation": call.invocation,
        "status": call.status or "has not ended",
    }
    if call.call_site:
        facts["line"] = call.call_site
    if one.last_rank >= 0:
        facts["asked_last"] = f"rank {one.last_rank}"
        if one.asked_but_one:
            facts["others_waited_us"] = (one.asked - one.asked_but_one) / 1000
    return facts


def _clock_text(job: JobRecords, rank: int) -> str:
    clock, first = job.clocks[rank], next(iter(job.records))
    if clock.error == 0.0 and clock.offset == 0.0:
        return f"the same clock as rank {first}"
    error = (
        "an unknown error" if clock.error is None else f"at most {clock.error / 1000:.0f} us error"
    )
    return (
        f"clock {clock.offset / 1000:.0f} us from that of rank {first}, drift "
        f"{clock.drift * 1e6:.1f} ppm, {error}"
    )
