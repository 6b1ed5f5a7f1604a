"""Says what is wrong with a job, in one paragraph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tfring.observe.explain import calls, ends, pace, transport
from tfring.observe.explain.causes import (
    DIFFERENT_CALLS,
    HANGS,
    WELL,
    Cause,
    Explanation,
    Finding,
)
from tfring.observe.explain.facts import find_facts, find_lines
from tfring.observe.explain.processes import Seen, look, with_stacks
from tfring.observe.explain.situation import Situation
from tfring.observe.recorder.job import JobRecords, load_job
from tfring.observe.recorder.layout import CallFlags, RankState
from tfring.runtime.texts.plain import plain
from tfring.runtime.texts.ranks import ranks_text

# In this order: a cause that explains the others comes first.
_RULES: tuple[Callable[[Situation], Finding | None], ...] = (
    ends.find_stopped,
    ends.find_killed,
    ends.find_failed,
    transport.find_broken_link,
    calls.find_different_calls,
    calls.find_not_calling,
    ends.find_all_killed,
    ends.find_any_failure,
    pace.find_over,
    pace.find_slow,
)
# At most this many ranks are asked for stacks; a stall of a large job has few causes.
_MOST_ASKED = 4
# An interpreter whose lock is free answers in milliseconds.
STACKS_SECONDS = 1.0
# As kEagerCircleEnd of ops/runtime/protocol/negotiation/stall_reports.cc, in nanoseconds.
EAGER_CIRCLE_END = 45_000_000_000


def explain_now(given: Sequence[Path | str] = ()) -> Explanation:
    """Says what is wrong with a job at this moment, also from the state of its processes.

    Ranks of this host that do not make a call that others wait for are asked for their stacks.

    Args:
        given: Which job: as for `load_job`.

    Raises:
        RecordError: There is no such job.
        OSError: A record cannot be read.
    """
    return explain_job(load_job(given))


def explain_job(job: JobRecords) -> Explanation:
    """Says what is wrong with a job whose records were just read, as `explain_now` does."""
    seen = look(job)
    ended = [r for r, record in job.records.items() if record.state is RankState.RUNNING]
    if any(seen[rank].state == "gone" for rank in ended):
        # Some may have ended in between and have recorded how.
        left = [record.path for record in job.records.values() if record.path.exists()]
        job = load_job(left) if left else job
    found = explain(job, seen)
    if found.cause is not Cause.NOT_CALLING:
        return found
    return explain(job, with_stacks(job, seen, found.ranks[:_MOST_ASKED], STACKS_SECONDS))


def explain(job: JobRecords, seen: Mapping[int, Seen] | None = None) -> Explanation:
    """Says what is wrong with a job.

    Args:
        job: The records of its ranks, as many as there are.
        seen: Its processes at this moment, by rank, see `processes.look`; None: unknown.
    """
    s = Situation(job, seen or {})
    first = next((found for rule in _RULES if (found := rule(s)) is not None), None)
    first = first or pace.describe_calm(s)
    findings = [first]
    if first.cause in (Cause.STOPPED, Cause.NOT_CALLING):
        # A job may hang for two reasons.
        second = calls.find_different_calls(s)
        if second is not None and not set(second.ranks) & set(first.ranks):
            findings.append(second)
    text = " ".join(part for one in findings for part in (one.text, one.advice) if part)
    return Explanation(
        cause=first.cause,
        ranks=first.ranks,
        text=text + _missing(job),
        names=first.names,
        advice=first.advice,
        brief=first.brief or first.text.partition(". ")[0],
        age=first.age,
        job=job.job,
        limit=_limit(s, first),
        what=first.text,
        evidence=find_facts(s, first),
        lines=find_lines(s),
    )


def make_verdict(job: JobRecords) -> str:
    """Returns what is wrong with a job, in a paragraph; "": nothing, or it is only slow."""
    found = explain_job(job)
    return "" if found.cause in WELL else plain(" ".join(found.text.split()))


def _limit(s: Situation, found: Finding) -> int:
    """Returns the age at which a hang ends the job, by rank 0's settings; 0: it does not."""
    if found.cause not in HANGS or not found.age or not s.lives:
        return 0
    header = s.job.records[s.ranks[0]].header
    limits = [int(header["stall_shutdown"])]
    if found.cause is Cause.STOPPED:  # no heartbeat comes from such a rank
        limits.append(int(header["heartbeat_timeout"]))
    if limits[0] and found.cause in DIFFERENT_CALLS and _only_eager_calls_wait(s):
        limits.append(EAGER_CIRCLE_END)
    return min(filter(None, limits), default=0)


def _only_eager_calls_wait(s: Situation) -> bool:
    waiting = [call for calls in s.waiting.values() for call in calls]
    return not any(CallFlags.IN_RUN in call.flags for call in waiting)


def _missing(job: JobRecords) -> str:
    if not job.missing:
        return ""
    have = "has" if len(job.missing) == 1 else "have"
    return (
        f" ({ranks_text(job.missing)} {have} no record here: on another host, or ended well. Run "
        "`tfring dump` on the other hosts, and give tfring explain the files of all.)"
    )
