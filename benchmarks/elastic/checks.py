"""Checks the logs of a job's workers: whether anything was lost, and how long recovery took."""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.elastic.faults import ACTIONS
from benchmarks.elastic.worker import Settings, hash_of, value_of

Events = Sequence[dict[str, Any]]
# The parts of a recovery: each ends when all ranks have logged this event.
PARTS = {
    "detection": "error",
    "round": "mesh",
    "mesh": "connected",
    "go": "go",
    "sync": "synced",
    "first step": "commit",
}


def violations(events: Events, settings: Settings, left: Iterable[int] = ()) -> list[str]:
    """Returns the violated promises of elastic training; empty if there are none.

    Args:
        events: The log events, in time order.
        settings: The settings of the workers.
        left: Workers that had to leave without a fault of their own.
    """
    return [
        *_check_steps(events, settings),
        *_check_ranges(events),
        *_check_starts(events),
        *_check_members(events, set(left)),
    ]


def distinct_steps(events: Events) -> dict[int, dict[str, Any]]:
    """Returns the first commit of each step."""
    found: dict[int, dict[str, Any]] = {}
    for event in events:
        if event["e"] == "commit":
            found.setdefault(event["step"], event)
    return found


def _check_steps(events: Events, settings: Settings) -> list[str]:
    """Checks that each step is the same on all ranks that ran it, and as in a clean run."""
    wrong = []
    commits = distinct_steps(events)
    epoch = consumed = 0
    history = ""
    for step in range(1, max(commits, default=0) + 1):
        end = min(consumed + settings.batch, settings.samples)
        value = value_of(epoch, consumed, end, settings.samples)
        history = hash_of(history, epoch, consumed, value)
        one = commits.get(step)
        if one is None:
            wrong.append(f"step {step} was committed by nobody, and later ones were")
        elif (one["epoch"], one["all"], one["history"]) != (epoch, [consumed, end], history):
            wrong.append(f"step {step} is not that of a clean run, from where it began: {one}")
        epoch, consumed = (epoch + 1, 0) if end == settings.samples else (epoch, end)
    for event in events:
        one = commits.get(event.get("step", 0)) if event["e"] in ("commit", "end") else None
        if one is not None and event["history"] != one["history"]:
            wrong.append(f"step {event['step']} differs between ranks: {event}")
    return wrong


def _check_ranges(events: Events) -> list[str]:
    """Checks that in each step of a generation each sample is in the part of exactly one rank."""
    parts: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["e"] == "commit":
            parts[event["g"], event["step"]].append(event)
    wrong = []
    for (generation, step), group in parts.items():
        group.sort(key=lambda event: event["rank"])
        ranges = [event["mine"] for event in group]
        whole = len(group) == group[0]["size"]
        gaps = any(a[1] > b[0] or (whole and a[1] != b[0]) for a, b in itertools.pairwise(ranges))
        ends = whole and [ranges[0][0], ranges[-1][1]] != group[0]["all"]
        if gaps or ends:
            wrong.append(f"step {step} of generation {generation}: the parts are {ranges}")
    return wrong


def _check_starts(events: Events) -> list[str]:
    """Checks that all ranks of a generation begin with one state, not behind a member's commit."""
    wrong = []
    last: dict[int, int] = {}  # commit of each worker
    begins: dict[int, dict[str, Any]] = {}
    for event in events:
        if event["e"] == "commit":
            if event["step"] != last.get(event["w"], event["step"] - 1) + 1:
                wrong.append(f"worker {event['w']} has commit {event} after {last[event['w']]}")
            last[event["w"]] = event["step"]
        elif event["e"] == "train":
            best = max((last.get(worker, 0) for worker in event["members"]), default=0)
            first = begins.setdefault(event["g"], event)
            if event["step"] < best and event is first:
                wrong.append(f"generation {event['g']} begins behind commit {best}: {event}")
            if any(event[name] != first[name] for name in ("step", "history", "weights")):
                wrong.append(f"generation {event['g']} begins with two states: {first}, {event}")
            last[event["w"]] = event["step"]
    return wrong


def _check_members(events: Events, left: set[int]) -> list[str]:
    """Checks that a worker that did not fail stays, in the same process."""
    wrong = []
    failed = set(left)
    before: set[int] = set()
    seen = 0
    for event in events:
        if event["e"] == "fault":
            failed.add(event["w"])
        elif event["e"] == "train" and event["g"] > seen:
            seen, members = event["g"], set(event["members"])
            if lost := before - members - failed:
                wrong.append(f"workers {sorted(lost)} are not in generation {seen}, and lived")
            before = members
    return wrong


class Recovery:
    """The recovery from one fault, or from several before all ranks committed again.

    Attributes:
        faults: The events.
        errors: Seconds from the last fault to the error on each rank that had one.
        next_commit: Seconds from the last fault to the next commit of any rank in a generation
            that began later.
        parts: Seconds of each of PARTS, if the only fault was the end of one rank.
    """

    def __init__(self, faults: Events, after: Events) -> None:
        self.faults = list(faults)
        begin = faults[-1]["t"]
        victims = {fault["w"] for fault in faults}
        ended = max(fault.get("g", 0) for fault in faults)
        others = [event for event in after if event["w"] not in victims]
        self.errors = [
            (event["t"] - begin) / 1e9
            for event in others
            if event["e"] == "error" and event["g"] == ended
        ]
        commits = [event for event in others if event["e"] == "commit" and event["g"] > ended]
        self.next_commit = (commits[0]["t"] - begin) / 1e9 if commits else None
        self.parts: dict[str, float] = {}
        if commits and len(faults) == 1:
            self._divide(begin, others, commits)

    def _divide(self, begin: int, others: Events, commits: Events) -> None:
        generation, size = commits[0]["g"], commits[0]["size"]
        firsts = {event["rank"]: event["t"] for event in reversed(commits)}
        until = max(firsts.values())
        members = next(e for e in others if e["e"] == "train" and e["g"] == generation)["members"]
        at = begin
        for part, event in PARTS.items():
            times = [
                one["t"]
                for one in others
                if one["e"] == event and one["w"] in members and one["t"] <= until
            ]
            if event == "commit":
                times = list(firsts.values()) if len(firsts) == size else []
            if times:
                # The first one of each rank: later ones belong to later faults.
                end = max(at, max(times[: len(members)]))
                self.parts[part] = (end - at) / 1e9
                at = end


def recoveries(events: Events) -> list[Recovery]:
    """Returns the recoveries, in order."""
    found, group = [], []
    for number, event in enumerate(events):
        if event["e"] == "fault" and event["action"] in ACTIONS:
            group.append(event)
        elif group and event["e"] == "commit" and event["g"] > max(f.get("g", 0) for f in group):
            rest = events[number:]
            end = next((i for i, e in enumerate(rest) if e["e"] == "fault"), len(rest))
            start = next(i for i, e in enumerate(events) if e is group[-1])
            found.append(Recovery(group, events[start : number + end]))
            group = []
    return found


def quantiles(values: Iterable[float], scale: float = 1000.0) -> dict[str, float]:
    """Returns median, 95th percentile and maximum of seconds, in milliseconds."""
    ordered = sorted(values)
    if not ordered:
        return {}
    high = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    middle = statistics.median(ordered)
    return {"median": middle * scale, "p95": high * scale, "max": ordered[-1] * scale}
