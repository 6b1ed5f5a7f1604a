"""Reads the record of one rank, while the rank runs or after its end."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tfring.observe.recorder import layout
from tfring.observe.recorder.entries import Call as Call
from tfring.observe.recorder.entries import Event as Event
from tfring.observe.recorder.entries import Plan as Plan
from tfring.observe.recorder.entries import make_calls, make_event, make_plans
from tfring.observe.recorder.files import RecordError as RecordError
from tfring.observe.recorder.files import (
    check_header,
    copy_settled,
    open_file,
    parse_header,
    parse_rings,
)
from tfring.observe.recorder.layout import RankState
from tfring.observe.recorder.processes import own_boot, process_state

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Record:
    """The record of one rank as of the moment when it was read.

    Attributes:
        path: The file.
        header: Its fields by name, see ops/runtime/recorder/record_layout.h.
        raw_calls: The newest calls as an array of layout.CALL, by number.
        raw_plans: The newest plans as an array of layout.PLAN, by sequence.
        raw_events: The newest events as an array of layout.EVENT, by number.
        ranks: What is known of each rank, as an array of layout.RANK.
        read: When it was read, on the same clock; None if the clock is of another host.
    """

    path: Path
    header: dict[str, Any]
    raw_calls: Array
    raw_plans: Array
    raw_events: Array
    ranks: Array
    read: int | None

    @cached_property
    def calls(self) -> list[Call]:
        """The newest calls, by number."""
        return make_calls(self.raw_calls)

    @cached_property
    def open_calls(self) -> list[Call]:
        """Calls that have not ended."""
        return make_calls(self.raw_calls[self.raw_calls["ended"] == 0])

    @cached_property
    def plans(self) -> list[Plan]:
        """The newest plans, by sequence."""
        return make_plans(self.raw_plans)

    @cached_property
    def events(self) -> list[Event]:
        """The newest events, by number."""
        return [make_event(entry) for entry in self.raw_events]

    @property
    def rank(self) -> int:
        """Its rank in the job."""
        return int(self.header["rank"])

    @property
    def size(self) -> int:
        """The number of ranks of the job."""
        return int(self.header["size"])

    @property
    def host(self) -> str:
        """The name of its host."""
        return str(self.header["host"])

    @property
    def pid(self) -> int:
        """Its process id on its host."""
        return int(self.header["pid"])

    @property
    def state(self) -> RankState:
        """What the rank wrote last; a killed rank writes nothing."""
        return RankState(self.header["state"])

    @property
    def input_share(self) -> float | None:
        """Share of the time since init spent waiting for input; None: not reported."""
        began, until = int(self.header["started_monotonic"]), int(self.header["step_began"])
        spent = int(self.header["input_time"])
        return spent / (until - began) if spent > 0 and until > began else None


def read_record(path: Path | str) -> Record:
    """Reads the record in a file, without entries that are being written.

    Raises:
        RecordError: The file is no record, or has another version.
        OSError: The file cannot be read.
    """
    path = Path(path)
    here = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    data = copy_settled(path)
    rings, header = parse_rings(path, data), parse_header(data)
    return Record(
        path=path,
        header=header,
        raw_calls=_ordered(rings["call"], "number"),
        raw_plans=_ordered(rings["plan"], "sequence"),
        raw_events=_ordered(rings["event"], "number"),
        ranks=rings["rank"],
        read=here if header["boot"] == own_boot() else None,
    )


def read_header(path: Path | str) -> dict[str, Any]:
    """Reads the header of a record.

    Raises:
        RecordError: The file is no record, or has another version.
        OSError: The file cannot be read.
    """
    with open_file(Path(path)) as file:
        return check_header(Path(path), file.read(layout.HEADER_BYTES))


def find_last_sign(record: Record) -> int:
    """Returns the last moment at which a rank is known to have run, on its own clock."""
    if record.read is not None and process_state(record.header) == "running":
        return record.read
    times = [int(record.header[name]) for name in ("awake", "started_monotonic")]
    times += [max(call.submitted, call.planned, call.ended) for call in record.calls]
    times += [max(plan.started, plan.ended) for plan in record.plans]
    return max(*times, *(event.time for event in record.events))


def _ordered(ring: Array, key: str) -> Array:
    used: Array = ring[ring[key] != 0]
    # Several times faster than used.sort(order=key), which compares whole entries.
    ordered: Array = used[np.argsort(used[key])]
    return ordered
