"""The critical path of a step: what would have had to be faster for the step to end earlier.

Found backwards from the end of the rank that ended last, as critical paths of parallel programs
are: at each point, what was the last thing that had to happen? C.-Q. Yang, B. P. Miller: "Critical
path analysis for the execution of parallel and distributed programs", ICDCS 1988.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tfring.observe.recorder.gradients import Series
from tfring.observe.recorder.job import JobRecords
from tfring.observe.timeline.moments import JobMoments, Moments

COMPUTE = "compute"
WAIT = "wait"
NEGOTIATION = "negotiation"
TRANSPORT = "transport"


@dataclass(frozen=True)
class Segment:
    """A part of the path. Times are nanoseconds of the common clock.

    Attributes:
        begin: When it began.
        end: When it ended; the next segment begins then.
        rank: The rank on which it was.
        kind: COMPUTE: the rank computed, as others did; WAIT: it computed, and all others waited
            for it; NEGOTIATION: the ranks agreed on what to run; TRANSPORT: data moved.
        name: The collective: that moved, or whose gradients were computed.
    """

    begin: int
    end: int
    rank: int
    kind: str
    name: str

    @property
    def text(self) -> str:
        """Returns "wait for rank 3"."""
        return f"wait for rank {self.rank}" if self.kind == WAIT else self.kind


def critical_path(
    job: JobRecords | JobMoments, step: int, series: Series | None = None
) -> tuple[Segment, ...]:
    """Returns the critical path of a step, in order of time.

    It leads from the end of the step before, or from the first gradients where that is not
    recorded, to the end of the step on the rank that ended last, without a gap.

    Args:
        job: The records of its ranks.
        step: The number of the step, from 1 on.
        series: Of which gradients; None: of those of the first process set and name.

    Returns:
        The parts; none if no rank has recorded the whole step, or it has not ended.
    """
    moments = job if isinstance(job, JobMoments) else JobMoments(job)
    if series is None:
        series = min(moments.series, default=(0, ""))
    key = (series, step)
    ends = [
        moments.of(rank, call)
        for rank, steps in moments.steps.items()
        if key in steps and steps[key].end
        for call in moments.calls[rank][key]
    ]
    if not ends:
        return ()
    last = max(ends, key=lambda one: one.ended)
    path = [Segment(last.finished or last.ended, last.ended, last.rank, TRANSPORT, last.call.name)]
    floor = _begin(moments, series, step)
    here: Moments | None = last
    while here is not None and path[-1].begin > floor:
        here = _back(moments, here, floor, path)
    path.reverse()
    return tuple(_joined(path))


def _joined(path: list[Segment]) -> list[Segment]:
    """Returns the path without empty parts, and with neighbours of one kind in one."""
    joined: list[Segment] = []
    for one in path:
        if one.end == one.begin:
            continue
        last = joined[-1] if joined else None
        if last and (last.kind, last.rank, last.name) == (one.kind, one.rank, one.name):
            joined[-1] = replace(last, end=one.end)
        else:
            joined.append(one)
    return joined


def _begin(moments: JobMoments, series: Series, step: int) -> int:
    """When the step began: the last rank was through with the one before."""
    common, all_steps = moments.job.common, moments.steps.items()
    before = [
        common(rank, steps[series, step - 1].end)
        for rank, steps in all_steps
        if (series, step - 1) in steps
    ]
    if before and all(before):
        return max(before)
    own = [(rank, steps.get((series, step))) for rank, steps in all_steps]
    return min(common(rank, one.first) for rank, one in own if one is not None)


def _back(moments: JobMoments, here: Moments, floor: int, path: list[Segment]) -> Moments | None:
    """Adds what came before the end of a call; returns the call before that on the path, if any."""

    def add(kind: str, rank: int, begin: int) -> None:
        begin = min(max(begin, floor), path[-1].begin)
        path.append(Segment(begin, path[-1].begin, rank, kind, here.call.name))

    # A collective moves data once its last member is there.
    members = [one for one in moments.of_plan(here.call.sequence) if one.started] or [here]
    latest = max(members, key=lambda one: one.started)
    if latest.started:
        add(TRANSPORT, here.rank, latest.started)
    before = moments.before(latest.rank, latest.call.sequence)
    previous = next((m for m in moments.of_plan(before) if m.rank == latest.rank), None)
    if previous is not None and previous.finished > max(latest.planned, floor):
        # It was there, and another plan ran: that one is on the path.
        add(TRANSPORT, latest.rank, previous.finished)
        return previous
    # The plan waited for the rank that asked last for one of its calls.
    calls = [one for one in members if one.asked] or [latest]
    # Those of a batch of a lock have one time: then it was the call that this rank made last.
    made = {(one.rank, one.call.name): one.submitted for one in members}
    cause = max(calls, key=lambda one: (one.asked, made.get((one.last_rank, one.call.name), 0)))
    rank = cause.last_rank if cause.last_rank >= 0 else latest.rank
    submits = {one.rank: one.submitted for one in members if one.call.name == cause.call.name}
    submitted = submits.pop(rank, cause.asked or latest.submitted)
    add(NEGOTIATION, latest.rank, submitted)
    # Rank 0 may have read the others' requests late; their own records know better.
    others = cause.asked_but_one if moments.job.missing else max(submits.values(), default=0)
    if cause.last_rank == rank and 0 < others < submitted:
        add(WAIT, rank, others)
    add(COMPUTE, rank, floor)
    return None
