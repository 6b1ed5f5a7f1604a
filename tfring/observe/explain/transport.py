"""Rules about data that stopped in the middle of a collective."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tfring.observe.explain.causes import Cause, Finding
from tfring.observe.explain.situation import Situation, duration
from tfring.observe.recorder.layout import EventType
from tfring.observe.recorder.reader import Plan
from tfring.runtime.texts.ranks import ranks_text
from tfring.runtime.texts.words import upper_first

# In the error of a rank whose data stopped: who waits, and for which rank.
_ENDS = re.compile(r"rank (\d+) \([^)]*\) waits for (?:\d+ bytes from )?rank (\d+)")
_BROKEN = ("DeadlineExceeded", "Unavailable", "Cancelled", "Aborted")


@dataclass(frozen=True)
class _Wait:
    rank: int
    peer: int
    since: int
    plan: Plan


def find_broken_link(s: Situation) -> Finding | None:
    """Finds two ranks between which no data moves.

    Both are in the same plan. If two ranks wait for each other, they are the ends of the path. Of
    ranks that wait in a circle, the one that first got no data is next to the gap.
    """
    said = _from_errors(s)
    waits = {wait.rank: wait for rank in s.ranks if (wait := _wait_of(s, rank)) is not None}
    stuck = {r: w for r, w in waits.items() if s.now - w.since > s.patience or w.plan.ended}
    if said is None and not stuck:
        return None
    pair = said or _pair(s, stuck)
    if pair is None:
        return None
    rank, peer = pair
    plan = next((w.plan for w in (stuck.get(rank), stuck.get(peer)) if w), None)
    if plan is None:
        plan = next((w.plan for w in waits.values()), None)
    calls = [c for r in s.ranks for c in s.open[r] if plan and c.sequence == plan.sequence]
    what = calls[0].text() if calls else f"{plan.kind} (plan {plan.sequence})" if plan else "a plan"
    began = min((w.since for w in stuck.values()), default=s.now)
    rest = [r for r in stuck if r not in pair]
    since = f", {duration(s.now - began)} ago" if stuck else ""
    sentences = [
        f"In the middle of {what}, data stopped between {s.who(rank)} and {s.who(peer)}{since}.",
        _side(waits.get(rank)) or f"Rank {rank} waits for rank {peer}.",
        _side(waits.get(peer)),
    ]
    if rest:
        verb = "waits" if len(rest) == 1 else "wait"
        sentences.append(f"{upper_first(ranks_text(rest))} {verb} because of it.")
    return Finding(
        cause=Cause.LINK,
        ranks=tuple(sorted(pair)),
        names=tuple(sorted({call.name for call in calls})),
        text=" ".join(filter(None, sentences)),
        advice=(
            "Both still reach rank 0, so look at the network between these two: firewall, cable, "
            "route, MTU."
        ),
    )


def _from_errors(s: Situation) -> tuple[int, int] | None:
    for _, _, event in s.events():
        if event.type is EventType.ABORT or event.code == "DeadlineExceeded":
            match = _ENDS.search(event.text)
            if match and "no progress" in event.text:
                return int(match[1]), int(match[2])
    return None


def _wait_of(s: Situation, rank: int) -> _Wait | None:
    """Returns what the oldest plan of a rank that has not ended, or broke, waited for."""
    for plan in s.job.records[rank].plans:
        if plan.ended and plan.status not in _BROKEN:
            continue
        if plan.waits_peer < 0 or not plan.started:
            continue
        since = plan.waits_since or plan.started
        return _Wait(rank, plan.waits_peer, s.common(rank, since), plan)
    return None


def _pair(s: Situation, stuck: dict[int, _Wait]) -> tuple[int, int] | None:
    for rank, wait in stuck.items():
        back = stuck.get(wait.peer)
        if back is not None and back.peer == rank and back.plan.sequence == wait.plan.sequence:
            return rank, wait.peer
    # A peer that is not in the plan yet is late, and no path is broken.
    there = [
        w
        for w in stuck.values()
        if w.peer not in s.job.records
        or any(p.sequence == w.plan.sequence for p in s.job.records[w.peer].plans)
    ]
    first = min(there, key=lambda wait: wait.since, default=None)
    return None if first is None else (first.rank, first.peer)


def _side(wait: _Wait | None) -> str:
    if wait is None:
        return ""
    plan = wait.plan
    if plan.waits_receives:
        return f"Rank {wait.rank} waits for {plan.waits_bytes} bytes from rank {wait.peer}."
    return f"Rank {wait.rank} cannot send {plan.waits_bytes} bytes to rank {wait.peer}."
