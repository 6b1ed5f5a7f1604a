"""Reads the record of one rank, while the rank runs or when it is gone."""

from __future__ import annotations

import contextlib
import functools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfring.recorder import layout
from tfring.recorder.files import RecordError as RecordError
from tfring.recorder.files import checked_header, header_of, rings_of, settled_copy, text_of
from tfring.recorder.layout import EventType, RankState


@dataclass(frozen=True)
class Call:
    """One collective call of one rank. Times are nanoseconds of its monotonic clock, 0: not yet."""

    number: int
    name: str
    call_site: str
    kind: str
    dtype: str
    op: str
    shapes: tuple[tuple[int, ...], ...]
    tensors: int
    bytes: int
    process_set: int
    invocation: int
    sequence: int
    attempt: int
    submitted: int
    first_asked: int
    second_last_asked: int
    last_asked: int
    last_rank: int
    planned: int
    ended: int
    status: str
    flags: layout.CallFlags
    root: int
    peer: int
    on_device: bool

    @property
    def waits(self) -> bool:
        """Whether it has been called and has no plan yet: some rank has not called it."""
        return self.planned == 0 and self.ended == 0

    @property
    def runs(self) -> bool:
        """Whether it has a plan and has not ended."""
        return self.planned != 0 and self.ended == 0

    def text(self) -> str:
        """Returns "allreduce of tensor 'x' (train.py:40)"."""
        where = f" ({self.call_site})" if self.call_site else ""
        return f"{self.kind} of tensor '{self.name}'{where}"


@dataclass(frozen=True)
class Plan:
    """What a rank ran for one or several calls, with what kept it waiting when it was read."""

    sequence: int
    kind: str
    dtype: str
    bytes: int
    process_set: int
    calls: int
    tensors: int
    members: int
    queued: int
    started: int
    launched: int
    ended: int
    status: str
    waits_since: int
    waits_peer: int
    waits_bytes: int
    waits_receives: bool


@dataclass(frozen=True)
class Event:
    """Something that happened on a rank beside its calls."""

    number: int
    time: int
    type: EventType
    code: str
    value: int
    text: str


@dataclass(frozen=True)
class Lateness:
    """What the others have waited for one rank, as rank 0 saw it; nanoseconds."""

    late: int
    times: int
    asked: int


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


def read_record(path: Path | str, newest: int | None = None) -> Record:
    """Reads the record in a file.

    Args:
        path: The file of one rank; it may be written while it is read.
        newest: Of the calls and plans that have ended, `calls` and `plans` get so many; None: all.
            Making these objects takes most of the time.

    Returns:
        The record. Entries that were being written are left out.

    Raises:
        RecordError: The file is no record, or of another version.
        OSError: The file cannot be read.
    """
    path = Path(path)
    header, calls, plans, events, ranks, here = read_rings(path)
    return Record(
        path=path,
        header=header,
        calls=_calls(_wanted(calls, newest)),
        plans=_plans(_wanted(plans, newest)),
        events=[_event(entry) for entry in events],
        lateness=[
            Lateness(int(entry["late"]), int(entry["times"]), int(entry["asked"]))
            for entry in ranks
        ],
        read=here if header["boot"] == own_boot() else None,
        raw_calls=calls,
        raw_plans=plans,
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
    with Path(path).open("rb", buffering=0) as file:
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


def own_boot() -> str:
    """Returns what is equal on processes that have the same monotonic clock."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


def process_state(header: dict[str, Any]) -> str | None:
    """Returns how the process of a record is now.

    Args:
        header: Of its record.

    Returns:
        "running", "stopped" (by a signal or a debugger), "gone", or None if it is on another host
        or in another container.
    """
    if header["boot"] != own_boot() or header["pid_space"] != _own_pid_space():
        return None
    try:
        text = Path(f"/proc/{header['pid']}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "gone"
    fields = text.rpartition(")")[2].split()
    if header["pid_started"] not in (0, int(fields[19])) or fields[0] in "ZX":
        return "gone"
    return "stopped" if fields[0] in "Tt" else "running"


def _own_pid_space() -> int:
    with contextlib.suppress(OSError):
        return Path("/proc/self/ns/pid").stat().st_ino
    return 0


def _monotonic() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def _used(ring: np.ndarray[Any, Any], key: str) -> np.ndarray[Any, Any]:
    used: np.ndarray[Any, Any] = ring[ring[key] != 0]
    # Several times faster than used.sort(order=key), which compares whole entries.
    ordered: np.ndarray[Any, Any] = used[np.argsort(used[key])]
    return ordered


def _wanted(entries: np.ndarray[Any, Any], newest: int | None) -> np.ndarray[Any, Any]:
    if newest is None:
        return entries
    wanted = entries["ended"] == 0
    wanted[max(0, len(entries) - newest) :] = True
    chosen: np.ndarray[Any, Any] = entries[wanted]
    return chosen


def _named(names: tuple[str, ...], number: int) -> str:
    return names[number] if number < len(names) else f"number {number}"


_text = functools.lru_cache(maxsize=4096)(text_of)  # names and lines come again and again


@functools.lru_cache(maxsize=1024)
def _flags(number: int) -> layout.CallFlags:
    return layout.CallFlags(number)


@functools.lru_cache(maxsize=1024)
def _shapes(values: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    shapes, at = [], 0
    while at < len(values) and 0 <= values[at] <= len(values) - at - 1:
        shapes.append(tuple(values[at + 1 : at + 1 + values[at]]))
        at += 1 + values[at]
    return tuple(shapes)


def _columns(entries: np.ndarray[Any, Any], names: tuple[str, ...]) -> list[list[Any]]:
    """Returns fields as Python's own values: ten times faster than to ask every entry for each."""
    return [entries[name].tolist() for name in names]


def _calls(entries: np.ndarray[Any, Any]) -> list[Call]:
    numbers = (
        *("number", "tensors", "bytes", "process_set", "invocation", "sequence", "attempt"),
        *("submitted", "first_asked", "second_last_asked", "last_asked", "last_rank", "planned"),
        *("ended", "root", "peer"),
    )
    others = ("name", "call_site", "kind", "dtype", "op", "shapes", "status", "flags", "path")
    calls = []
    for values in zip(*_columns(entries, numbers + others), strict=True):
        plain = dict(zip(numbers, values, strict=False))
        name, call_site, kind, dtype, op, shapes, status, flags, path = values[len(numbers) :]
        calls.append(
            Call(
                **plain,
                name=_text(name),
                call_site=_text(call_site),
                kind=_named(layout.KINDS, kind),
                dtype=_named(layout.DTYPES, dtype),
                op=_named(layout.REDUCE_OPS, op),
                shapes=_shapes(tuple(shapes))[: plain["tensors"]],
                status=layout.STATUSES.get(status, "") if plain["ended"] else "",
                flags=_flags(flags),
                on_device=bool(path),
            )
        )
    return calls


def _plans(entries: np.ndarray[Any, Any]) -> list[Plan]:
    numbers = (
        *("sequence", "bytes", "process_set", "calls", "tensors", "members", "queued", "started"),
        *("launched", "ended", "waits_since", "waits_peer", "waits_bytes"),
    )
    plans = []
    others = ("kind", "dtype", "status", "waits_receives")
    for values in zip(*_columns(entries, numbers + others), strict=True):
        plain = dict(zip(numbers, values, strict=False))
        kind, dtype, status, receives = values[len(numbers) :]
        plans.append(
            Plan(
                **plain,
                kind=_named(layout.KINDS, kind),
                dtype=_named(layout.DTYPES, dtype),
                status=layout.STATUSES.get(status, "") if plain["ended"] else "",
                waits_receives=bool(receives),
            )
        )
    return plans


def _event(entry: Any) -> Event:
    return Event(
        number=int(entry["number"]),
        time=int(entry["time"]),
        type=EventType(int(entry["type"])),
        code=layout.STATUSES.get(int(entry["code"]), ""),
        value=int(entry["value"]),
        text=text_of(entry["text"]),
    )
