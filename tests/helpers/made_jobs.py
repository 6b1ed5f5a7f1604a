"""Makes up the records of a job, to test how `tfring explain` reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tfring.observe.recorder import layout
from tfring.observe.recorder.clocks import find_clock
from tfring.observe.recorder.job import JobRecords
from tfring.observe.recorder.layout import CallFlags, EventType, RankState
from tfring.observe.recorder.reader import Call, Event, Plan, Record

SECOND = 1_000_000_000
HOUR = 3600 * SECOND
START = 1000 * SECOND


@dataclass(frozen=True)
class MadeRecord(Record):
    """A record made of objects instead of arrays."""

    calls: list[Call]
    events: list[Event]
    plans: list[Plan]


def call(name: str, invocation: int, submitted: float, planned: float = 0, **more: Any) -> Call:
    """A call that ended well when its plan came, or waits without a plan; seconds since START."""
    at = [START + round(t * SECOND) if t or t == submitted else 0 for t in (submitted, planned)]
    made = Call(
        number=0,
        name=name,
        call_site="train.py:40",
        kind="allreduce",
        dtype="float32",
        op="Sum",
        shapes=((4,),),
        tensors=1,
        bytes=16,
        process_set=0,
        invocation=invocation,
        sequence=0,
        attempt=0,
        submitted=at[0],
        first_asked=0,
        second_last_asked=0,
        last_asked=0,
        last_rank=-1,
        planned=at[1],
        ended=at[1],
        status="OK" if planned else "",
        flags=CallFlags(0),
        root=0,
        peer=0,
        on_device=False,
    )
    return replace(made, **more)


def event(kind: EventType, time: float, text: str, code: str = "OK") -> Event:
    """An event, seconds after START."""
    return Event(0, START + round(time * SECOND), kind, code, 0, text)


def record(
    rank: int,
    size: int,
    calls: Sequence[Call],
    now: float,
    *,
    events: Sequence[Event] = (),
    state: RankState = RankState.RUNNING,
    host: str = "a",
    **header: int,
) -> Record:
    """The record of a rank, read `now` seconds after START; each host has its own clock."""
    empty = np.zeros(1, layout.HEADER)[0]
    values: dict[str, Any] = {name: empty[name].item() for name in layout.HEADER.names or ()}
    own = {"rank": rank, "size": size, "pid": 4000 + rank, "state": int(state)}
    values |= own | {"host": host, "boot": host, "job": "made", "ended": len(calls)}
    values |= {"started_monotonic": START, "awake": START + round(now * SECOND)} | header
    return MadeRecord(
        path=Path(f"rank-{rank}.record"),
        header=values,
        calls=[replace(one, number=i + 1) for i, one in enumerate(calls)],
        plans=[],
        events=[replace(one, number=i + 1) for i, one in enumerate(events)],
        read=START + round(now * SECOND),
        raw_calls=np.zeros(0, layout.CALL),
        raw_plans=np.zeros(0, layout.PLAN),
        raw_events=np.zeros(0, layout.EVENT),
        ranks=np.zeros(0, layout.RANK),
    )


def job(records: Mapping[int, Record] | Sequence[Record]) -> JobRecords:
    """The records of a job."""
    found = records.values() if isinstance(records, Mapping) else records
    by_rank = {one.rank: one for one in found}
    first = by_rank[min(by_rank)]
    return JobRecords(by_rank, {rank: find_clock(first, one) for rank, one in by_rank.items()})
