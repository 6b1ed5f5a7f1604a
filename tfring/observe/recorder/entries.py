"""Calls, plans and events as objects, made from the arrays in a record."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfring.observe.recorder import layout
from tfring.observe.recorder.files import parse_text
from tfring.observe.recorder.layout import EventType


@dataclass(frozen=True)
class Call:
    """One collective call of one rank. Times are nanoseconds of its monotonic clock; 0: not yet."""

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
        """Whether it has no plan yet, because some rank has not made this call."""
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
    """What a rank ran for one or more calls, and what the plan waited for at that moment."""

    sequence: int
    kind: str
    started: int
    ended: int
    status: str
    waits_since: int
    waits_peer: int
    waits_bytes: int
    waits_receives: bool


@dataclass(frozen=True)
class Event:
    """Something that happened on a rank besides its calls."""

    number: int
    time: int
    type: EventType
    code: str
    value: int
    text: str


def _named(names: tuple[str, ...], number: int) -> str:
    return names[number] if number < len(names) else f"number {number}"


_text = functools.lru_cache(maxsize=4096)(parse_text)  # names and lines come again and again


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


def _as_dicts(entries: np.ndarray[Any, Any]) -> Iterator[dict[str, Any]]:
    """Yields entries with Python values; ten times faster than reading each field of each."""
    names = [name for name in entries.dtype.names or () if name != "unused"]
    for values in zip(*(entries[name].tolist() for name in names), strict=True):
        yield dict(zip(names, values, strict=True))


def make_calls(entries: np.ndarray[Any, Any]) -> list[Call]:
    """Returns a `Call` for each entry of an array of layout.CALL."""
    calls = []
    for entry in _as_dicts(entries):
        path = entry.pop("path")
        entry |= {
            "name": _text(entry["name"]),
            "call_site": _text(entry["call_site"]),
            "kind": _named(layout.KINDS, entry["kind"]),
            "dtype": _named(layout.DTYPES, entry["dtype"]),
            "op": _named(layout.REDUCE_OPS, entry["op"]),
            "shapes": _shapes(tuple(entry["shapes"]))[: entry["tensors"]],
            "status": layout.STATUSES.get(entry["status"], "") if entry["ended"] else "",
            "flags": _flags(entry["flags"]),
            "on_device": path == layout.ON_DEVICE,
        }
        calls.append(Call(**entry))
    return calls


def make_plans(entries: np.ndarray[Any, Any]) -> list[Plan]:
    """Returns a `Plan` for each entry of an array of layout.PLAN."""
    return [
        Plan(
            sequence=entry["sequence"],
            kind=_named(layout.KINDS, entry["kind"]),
            started=entry["started"],
            ended=entry["ended"],
            status=layout.STATUSES.get(entry["status"], "") if entry["ended"] else "",
            waits_since=entry["waits_since"],
            waits_peer=entry["waits_peer"],
            waits_bytes=entry["waits_bytes"],
            waits_receives=bool(entry["waits_receives"]),
        )
        for entry in _as_dicts(entries)
    ]


def make_event(entry: Any) -> Event:
    """Returns an `Event` for an entry of layout.EVENT."""
    return Event(
        number=int(entry["number"]),
        time=int(entry["time"]),
        type=EventType(int(entry["type"])),
        code=layout.STATUSES.get(int(entry["code"]), ""),
        value=int(entry["value"]),
        text=parse_text(entry["text"]),
    )
