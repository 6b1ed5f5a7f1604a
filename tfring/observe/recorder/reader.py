"""Reads the record of one rank, while the rank runs or when it is gone."""

from __future__ import annotations

import mmap
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfring.observe.recorder import layout
from tfring.observe.recorder.entries import Call as Call
from tfring.observe.recorder.entries import Event as Event
from tfring.observe.recorder.entries import Lateness, calls_of, event_of, plans_of
from tfring.observe.recorder.entries import Plan as Plan
from tfring.observe.recorder.files import RecordError as RecordError
from tfring.observe.recorder.files import (
    checked_header,
    header_of,
    open_file,
    rings_of,
    settled_copy,
)
from tfring.observe.recorder.layout import RankState
from tfring.observe.recorder.processes import own_boot, process_state


@dataclass(frozen=True)
class Record:
    """The record of one rank as of the moment when it was read.

    Attributes:
        path: The file.
        header: Its numbers and texts by name, see ops/runtime/recorder/record_layout.h.
        calls: The newest calls, by number.
        plans: The newest plans, by sequence.
        events: The newest events, by number.
        lateness: On rank 0: of each rank.
        sent: Bytes that this rank has sent to each rank, without those of NCCL.
        read: When it was read, on the same clock, or None where that is another machine's.
        raw_calls: The calls as an array of layout.CALL, by number.
        raw_plans: The plans as an array of layout.PLAN, by sequence.
    """

    path: Path
    header: dict[str, Any]
    calls: list[Call]
    plans: list[Plan]
    events: list[Event]
    lateness: list[Lateness]
    sent: list[int]
    read: int | None
    raw_calls: np.ndarray[Any, Any]
    raw_plans: np.ndarray[Any, Any]

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
    def generation(self) -> int:
        """How many times the process has called init."""
        return int(self.header["generation"])

    @property
    def state(self) -> RankState:
        """What the rank has written last; a killed one has no time to write."""
        return RankState(self.header["state"])

    @property
    def open_calls(self) -> list[Call]:
        """Calls that have not ended."""
        return [call for call in self.calls if call.ended == 0]

    @property
    def input_share(self) -> float | None:
        """Part of the time since init in which it waited for input; None: its program says nothing.

        See core.mark_step.
        """
        began, until = int(self.header["started_monotonic"]), int(self.header["step_began"])
        spent = int(self.header["input_time"])
        return spent / (until - began) if spent > 0 and until > began else None


def read_record(path: Path | str) -> Record:
    """Reads the record in a file.

    Args:
        path: The file of one rank; it may be written while it is read.

    Returns:
        The record. Entries that were being written are left out.

    Raises:
        RecordError: The file is no record, or of another version.
        OSError: The file cannot be read.
    """
    return record_of(Path(path), read_rings(Path(path)))


def record_of(path: Path, rings: Rings) -> Record:
    """Returns the record of which this was read."""
    return _record(path, rings, rings.calls, rings.plans)


def read_arrays(path: Path | str) -> Record:
    """Reads what a report is made of, in a small part of the time of read_record.

    Args:
        path: The file of one rank; it may be written while it is read.

    Returns:
        The record, with all entries in `raw_calls` and `raw_plans`; `calls` and `plans` have only
        the newest one.

    Raises:
        RecordError: The file is no record, or of another version.
        OSError: The file cannot be read.
    """
    rings = read_rings(Path(path))
    return _record(Path(path), rings, rings.calls[-1:], rings.plans[-1:])


def read_newest(path: Path | str, calls: int) -> Record:
    """Reads what a view of this moment shows, in a small part of the time of read_record.

    The entries are copied once. One that is overwritten meanwhile is left out; of one that changes,
    some fields may be older than others, until one looks again.

    Args:
        path: The file of one rank; it may be written while it is read.
        calls: So many of the newest calls, and all that have not ended, are in `raw_calls`.

    Returns:
        The record, with all events. `calls` and `plans` have only the newest one and those that
        have not ended, because making these objects takes long.

    Raises:
        RecordError: The file is no record, or of another version.
        OSError: The file cannot be read.
    """
    path = Path(path)
    here = _monotonic()
    with open_file(path) as file:
        try:
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:  # it is empty
            raise RecordError(f"{path} is no record of tfring") from error
    found = rings_of(path, memory)
    rings = Rings(
        header=header_of(memory[: layout.HEADER_BYTES]),
        calls=_newest(found["call"], "number", calls),
        plans=_newest(found["plan"], "sequence", 1),
        events=_newest(found["event"], "number", len(found["event"])),
        ranks=found["rank"].copy(),
        read=here,
    )
    shown = rings.calls[(rings.calls["ended"] == 0) | _is_last(rings.calls)]
    return _record(path, rings, shown, rings.plans)


def _record(
    path: Path, rings: Rings, calls: np.ndarray[Any, Any], plans: np.ndarray[Any, Any]
) -> Record:
    """Returns the record of which this was read, with objects of these calls and plans."""
    return Record(
        path=path,
        header=rings.header,
        calls=calls_of(calls),
        plans=plans_of(plans),
        events=[event_of(entry) for entry in rings.events],
        lateness=[
            Lateness(int(entry["late"]), int(entry["times"]), int(entry["asked"]))
            for entry in rings.ranks
        ],
        sent=rings.ranks["sent"].tolist(),
        read=rings.read if rings.header["boot"] == own_boot() else None,
        raw_calls=rings.calls,
        raw_plans=rings.plans,
    )


def read_header(path: Path | str) -> dict[str, Any]:
    """Reads the header of a record only, which takes a small part of the time.

    Args:
        path: The file of one rank; it may be written while it is read.

    Returns:
        Its numbers and texts by name.

    Raises:
        RecordError: The file is no record, or of another version.
        OSError: The file cannot be read.
    """
    with open_file(Path(path)) as file:
        return checked_header(Path(path), file.read(layout.HEADER_BYTES))


class Rings(NamedTuple):
    """What lies in a record's file; the entries as arrays of the types in layout.py, in order."""

    header: dict[str, Any]
    calls: np.ndarray[Any, Any]
    plans: np.ndarray[Any, Any]
    events: np.ndarray[Any, Any]
    ranks: np.ndarray[Any, Any]
    read: int


def read_rings(path: Path) -> Rings:
    """Reads a record as read_record does, without making an object of every entry.

    Args:
        path: The file of one rank; it may be written while it is read.

    Raises:
        RecordError: The file is no record, or of another version.
        OSError: The file cannot be read.
    """
    here = _monotonic()
    data = settled_copy(path)
    header = header_of(data)
    rings = rings_of(path, data)
    calls = _used(rings["call"], "number")
    plans = _used(rings["plan"], "sequence")
    events = _used(rings["event"], "number")
    return Rings(header, calls, plans, events, rings["rank"], here)


def last_sign(record: Record) -> int:
    """Returns the last moment at which a rank is known to have run, on its own clock.

    Args:
        record: Of the rank. If its process runs now, that is the moment when this was read.
    """
    if record.read is not None and process_state(record.header) == "running":
        return record.read
    times = [int(record.header[name]) for name in ("awake", "started_monotonic")]
    times += [max(call.submitted, call.planned, call.ended) for call in record.calls]
    times += [max(plan.started, plan.ended) for plan in record.plans]
    return max(*times, *(event.time for event in record.events))


def _monotonic() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def _used(ring: np.ndarray[Any, Any], key: str) -> np.ndarray[Any, Any]:
    used: np.ndarray[Any, Any] = ring[ring[key] != 0]
    # Several times faster than used.sort(order=key), which compares whole entries.
    ordered: np.ndarray[Any, Any] = used[np.argsort(used[key])]
    return ordered


def _newest(ring: np.ndarray[Any, Any], key: str, most: int) -> np.ndarray[Any, Any]:
    """Returns so many of the newest entries, and those that have not ended, in order."""
    numbers = ring[key].copy()
    wanted = (numbers != 0) & (numbers > max(0, int(numbers.max(initial=0)) - most))
    if "ended" in (ring.dtype.names or ()):
        wanted |= (numbers != 0) & (ring["ended"] == 0)
    at = np.flatnonzero(wanted)
    entries = ring[at]
    return _used(entries[entries[key] == ring[key][at]], key)


def _is_last(entries: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    last: np.ndarray[Any, Any] = np.arange(len(entries)) == len(entries) - 1
    return last
