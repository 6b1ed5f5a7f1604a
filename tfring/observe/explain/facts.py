"""What the records and processes show of a job: facts for an explanation, and each rank's line."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from tfring.observe.explain.causes import WELL, Finding, RankLine
from tfring.observe.explain.situation import Situation, duration
from tfring.observe.recorder.layout import RankState
from tfring.observe.recorder.reader import Call
from tfring.runtime.texts.ranks import ranks_text
from tfring.runtime.texts.words import upper_first

# At most this many facts: the first ones say most.
_MOST = 12
_MOST_FAILURES = 4
_PLACE = re.compile(r"\(([^()\s]+:\d+)\)")
_ENDS = {RankState.LEFT: "has left the job", RankState.FAILED: "has left the job with an error"}


def find_facts(s: Situation, found: Finding) -> tuple[str, ...]:
    """Returns what shows that a finding is right, one sentence each.

    Of a job that is well, or if the records show nothing else, it is the finding's own text.
    """
    if found.cause in WELL:
        return (found.text,)
    facts = dict.fromkeys([*_processes(s), *_waits(s), *_idle(s, found), *_failures(s, found)])
    return tuple(map(upper_first, facts))[:_MOST] or (found.text,)


def find_lines(s: Situation) -> tuple[RankLine, ...]:
    """Returns the line of the program where each rank is, or was last; equal ones once."""
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank in s.ranks:
        groups[_line(s, rank)].append(rank)
    return tuple(RankLine(tuple(ranks), *where) for where, ranks in groups.items())


def _line(s: Situation, rank: int) -> tuple[str, str]:
    """Returns the line of a rank, and what it does there."""
    if call := _oldest(s, rank):
        return call.call_site, f"{'waits' if s.lives else 'waited'} in {_what(call)}"
    doing = s.doing(rank)
    if place := _PLACE.search(doing):
        return place[1], _PLACE.sub("", doing, count=1).replace(" ,", ",").strip()
    last = s.last_call(rank)
    return (last.call_site, f"called {_what(last)} last") if last else ("", "has called nothing")


def _oldest(s: Situation, rank: int) -> Call | None:
    """Returns the call that a rank waits in: one that another has not made, else any."""
    return next(iter([*s.waiting.get(rank, ()), *s.open.get(rank, ())]), None)


def _what(call: Call) -> str:
    return f"{call.kind} of tensor '{call.name}'"


def _processes(s: Situation) -> Iterator[str]:
    """Yields who is stopped or gone, and who has left."""
    for rank in s.ranks:
        state = s.job.records[rank].state
        if s.state(rank) == "stopped":
            yield f"{s.who(rank)} is stopped by a signal or a debugger"
        elif s.left(rank):
            yield f"{s.who(rank)} {_ENDS.get(state, 'has left the job')}"
        elif s.state(rank) == "gone":
            yield f"{s.who(rank)} is gone and has not recorded its end"


def _waits(s: Situation) -> Iterator[str]:
    """Yields who waits in which call, for whom."""
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank in s.ranks:
        if call := _oldest(s, rank):
            missing = [one for one in s.missing(call) if one != rank]
            have = "has" if len(missing) == 1 else "have"
            why = f"{ranks_text(missing)} {have} not made this call" if missing else ""
            groups[call.text(), why].append(rank)
    for (text, why), ranks in groups.items():
        waited = max(s.waited(rank, call) for rank in ranks if (call := _oldest(s, rank)))
        waits = ("waits" if len(ranks) == 1 else "wait") if s.lives else "waited"
        told = f"{ranks_text(ranks)} {waits} in {text}, for {duration(waited)}"
        yield f"{told}; {why}" if why else told
    for rank in s.ranks:
        for plan in s.job.records[rank].plans:
            if plan.waits_peer >= 0 and plan.started and not plan.ended:
                way = "from" if plan.waits_receives else "to"
                yield (
                    f"{ranks_text([rank])} has {plan.waits_bytes} bytes left to move {way} "
                    f"{ranks_text([plan.waits_peer])}"
                )


def _idle(s: Situation, found: Finding) -> Iterator[str]:
    """Yields since when the ranks at fault have called nothing, and what they do."""
    for rank in found.ranks:
        if rank not in s.job.records:
            yield f"{ranks_text([rank])} has no record here"
        elif not s.open.get(rank) and not s.left(rank):
            last = s.last_call(rank)
            since = f"for {duration(s.idle(rank))}, since {last.text()}" if last else "yet"
            yield f"{ranks_text([rank])} has called nothing {since}"
            if doing := s.doing(rank):
                yield f"{ranks_text([rank])} {doing}"


def _failures(s: Situation, found: Finding) -> Iterator[str]:
    """Yields the first errors that ranks recorded, those of the ranks at fault before others."""
    failures = sorted(
        (rank not in found.ranks, s.common(rank, event.time), rank, event.text)
        for rank, events in s.failures.items()
        for event in events
    )
    for _, _, rank, text in failures[:_MOST_FAILURES]:
        yield f"{ranks_text([rank])} has recorded: {text}"
