"""Rules about jobs that go on: one rank slower than the others, or nothing wrong."""

from __future__ import annotations

from collections import Counter

import numpy as np

from tfring.observe.explain.causes import Cause, Finding
from tfring.observe.explain.situation import SECOND, Situation, duration
from tfring.observe.recorder.job import JobRecords
from tfring.observe.recorder.reader import Record
from tfring.observe.recorder.steps import steps_of
from tfring.observe.report.job_steps import find_job_steps
from tfring.observe.report.slowdowns import find_always_slow, find_slowdowns
from tfring.runtime.texts.ranks import ranks_text
from tfring.runtime.texts.words import upper_first

# Only the newest calls count.
_WINDOW_CALLS = 400
_WINDOW = 60 * SECOND
# A rank is compared with this many others to see whether it was fast before.
_COMPARED = 7


def find_slow(s: Situation) -> Finding | None:
    """Finds a rank that became slow, or comes last again and again: see report/slowdowns.py."""
    first = s.job.records.get(0)
    if first is None:
        return None
    found = _become_slow(s, first) or _always_slow(s, first)
    if found is None:
        return None
    rank, names, text = found
    return Finding(
        cause=Cause.SLOW,
        ranks=(rank,),
        names=names,
        text=text + _input_text(s, rank),
        advice=(
            "Compare its input pipeline, its processor (clock, other programs) and its share of "
            "the data with those of the other ranks."
        ),
    )


def _become_slow(s: Situation, first: Record) -> tuple[int, tuple[str, ...], str] | None:
    """Looks at the training steps of the rank for which the others waited longest."""
    steps = steps_of(first.raw_calls).good()
    known = steps.last_rank >= 0
    waited = np.maximum(0, steps.asked - steps.asked_before)[known]
    if not waited.any():
        return None
    rank = int(np.bincount(steps.last_rank[known], waited).argmax())
    others = [one for one in s.ranks if one not in (0, rank)][: _COMPARED - 1]
    compared = {one: s.job.records[one] for one in sorted({0, rank, *others} & set(s.ranks))}
    changes = find_slowdowns(find_job_steps(JobRecords(compared, s.job.clocks)))
    now = [one for one in changes if one.rank == rank and one.until is None]
    if not now:
        return None
    record = s.job.records[rank]
    where = f"It is process {record.pid} on host {record.host}."
    return rank, (), f"The job goes on, but {now[-1].text()}. {where}"


def _always_slow(s: Situation, first: Record) -> tuple[int, tuple[str, ...], str] | None:
    """Looks at when ranks asked rank 0 for each of the newest calls."""
    known = (c for c in first.calls if c.last_rank >= 0 and c.second_last_asked and c.last_asked)
    # The calls of one batch of a lock have the same time, and the others waited once for them.
    once = {(c.last_asked, c.name if c.planned > c.last_asked else ""): c for c in known}
    asked = list(once.values())
    asked = [c for c in asked[-_WINDOW_CALLS:] if asked[-1].last_asked - c.last_asked < _WINDOW]
    if not asked:
        return None
    waited = np.array([call.last_asked - call.second_last_asked for call in asked])
    span = max(call.last_asked for call in asked) - min(call.first_asked for call in asked)
    found = find_always_slow(np.array([call.last_rank for call in asked]), waited, span)
    if found is None:
        return None
    rank, late = found
    lost = float(waited[late].sum())
    name = Counter(asked[position].name for position in late).most_common(1)[0][0]
    text = (
        f"The job goes on, and {s.who(rank)} is slower than the others: in {len(late)} of the last "
        f"{len(asked)} calls they waited for it, {duration(lost / len(late))} each time, "
        f"{lost / span:.0%} of the last {duration(span)}."
    )
    return rank, (name,), text


def _input_text(s: Situation, rank: int) -> str:
    """Says how much of its time a rank waits for input, if its program reports it."""
    share = s.job.records[rank].input_share if rank in s.job.records else None
    return "" if share is None else f" It has spent {share:.0%} of its time waiting for input."


def find_over(s: Situation) -> Finding | None:
    """Finds that all ranks have left without an error."""
    if not all(s.left(rank) for rank in s.ranks):
        return None
    calls = sum(int(record.header["ended"]) for record in s.job.records.values())
    return Finding(
        cause=Cause.OVER,
        ranks=(),
        text=f"The job is over: {ranks_text(s.ranks)} left without an error, after {calls} calls.",
    )


def describe_calm(s: Situation) -> Finding:
    """Says what the ranks do while nothing is wrong."""
    waiters = s.waiters()
    calls = min(int(record.header["ended"]) for record in s.job.records.values())
    idle = min(map(s.idle, s.ranks))
    text = (
        f"Nothing is wrong as far as the records of {ranks_text(s.ranks)} show: each has made at "
        f"least {calls} calls, the last one {duration(idle)} ago."
    )
    if waiters:
        first = any(call.invocation == 1 for calls in s.waiting.values() for call in calls)
        usual = "no longer than usual in this job"
        why = (
            "for the first time: other ranks may still be loading or compiling" if first else usual
        )
        text += f" At present {waiters}, {why}."
    return Finding(Cause.NOTHING, (), upper_first(text))
