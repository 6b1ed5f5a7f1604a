"""Rules about jobs that go on: one rank slower than the others, or nothing wrong."""

from __future__ import annotations

from collections import Counter

from tfring.explain.causes import Cause, Finding
from tfring.explain.situation import SECOND, Situation, seconds, upper_first
from tfring.texts.ranks import ranks_text

# The newest calls are judged, of at most so long a time; with fewer there is no telling.
_WINDOW_CALLS = 400
_WINDOW = 60 * SECOND
_MIN_CALLS = 8
# Less lateness than this of a call is noise of the machine.
_NOTABLE = SECOND // 200
# A rank is slow if it is the last in so many of the late calls, and the others wait for it for so
# much of the time.
_SHARE_OF_CALLS = 0.75
_SHARE_OF_TIME = 0.2


def slow(s: Situation) -> Finding | None:
    """Finds a rank that comes last again and again, by when rank 0 was asked for each tensor."""
    first = s.job.records.get(0)
    if first is None:
        return None
    asked = [c for c in first.calls if c.last_rank >= 0 and c.second_last_asked and c.last_asked]
    asked = [c for c in asked[-_WINDOW_CALLS:] if asked[-1].last_asked - c.last_asked < _WINDOW]
    late = [c for c in asked if c.last_asked - c.second_last_asked > _NOTABLE]
    if len(late) < _MIN_CALLS:
        return None
    rank, times = Counter(call.last_rank for call in late).most_common(1)[0]
    own = [call for call in late if call.last_rank == rank]
    waited = sum(call.last_asked - call.second_last_asked for call in own)
    span = max(call.last_asked for call in asked) - min(call.first_asked for call in asked)
    if times < _SHARE_OF_CALLS * len(late) or waited < _SHARE_OF_TIME * span:
        return None
    name = Counter(call.name for call in own).most_common(1)[0][0]
    text = (
        f"The job goes on, and {s.who(rank)} is slower than the others: in {times} of the last "
        f"{len(asked)} calls they waited for it, {seconds(waited / times)} each time, "
        f"{waited / span:.0%} of the last {seconds(span)}." + _input_text(s, rank)
    )
    return Finding(
        Cause.SLOW, (rank,), (name,), text,
        "Compare its input pipeline, its processor (clock, other programs) and its share of the "
        "data with those of the other ranks.",
    )  # fmt: skip


def _input_text(s: Situation, rank: int) -> str:
    """How much of its time a rank waits for input, where its program says so."""
    if rank not in s.job.records:
        return ""
    header = s.job.records[rank].header
    since = int(header["started_monotonic"])
    spent, began = int(header["input_time"]), int(header["step_began"])
    if spent <= 0 or began <= since:
        return ""
    return f" It has spent {spent / (began - since):.0%} of its time in waiting for input."


def over(s: Situation) -> Finding | None:
    """Finds that all ranks have left without an error."""
    if not all(s.left(rank) for rank in s.ranks):
        return None
    calls = sum(int(record.header["ended"]) for record in s.job.records.values())
    return Finding(
        Cause.OVER, (), (),
        f"The job is over: {ranks_text(s.ranks)} left without an error, after {calls} calls.", "",
    )  # fmt: skip


def nothing(s: Situation) -> Finding:
    """Says what the ranks do while nothing is wrong."""
    waiters = s.waiters()
    calls = min(int(record.header["ended"]) for record in s.job.records.values())
    idle = min(map(s.idle, s.ranks))
    text = (
        f"Nothing is wrong as far as the records of {ranks_text(s.ranks)} show: each has made at "
        f"least {calls} calls, the last one {seconds(idle)} ago."
    )
    if waiters:
        first = any(call.invocation == 1 for calls in s.waiting.values() for call in calls)
        usual = "for the first time: others may still load or compile"
        how = usual if first else "no longer than is usual in this job"
        text += f" At present {waiters}, {how}."
    return Finding(Cause.NOTHING, (), (), upper_first(text), "")
