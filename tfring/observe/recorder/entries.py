"""The entries of a record: calls, plans and events, made of what lies in its file."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfring.observe.recorder import layout
from tfring.observe.recorder.files import text_of
from tfring.observe.recorder.layout import EventType


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


def calls_of(entries: np.ndarray[Any, Any]) -> list[Call]:
    """Returns an object for each of these entries.

    Args:
        entries: An array of layout.CALL.
    """
    numbers = (
        "number",
        "tensors",
        "bytes",
        "process_set",
        "invocation",
        "sequence",
        "attempt",
        "submitted",
        "first_asked",
        "second_last_asked",
        "last_asked",
        "last_rank",
        "planned",
        "ended",
        "root",
        "peer",
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
                on_device=path == layout.ON_DEVICE,
            )
        )
    return calls


def plans_of(entries: np.ndarray[Any, Any]) -> list[Plan]:
    """Returns an object for each of these entries.

    Args:
        entries: An array of layout.PLAN.
    """
    numbers = (
        "sequence",
        "bytes",
        "process_set",
        "calls",
        "tensors",
        "members",
        "queued",
        "started",
        "launched",
        "ended",
        "waits_since",
        "waits_peer",
        "waits_bytes",
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


def event_of(entry: Any) -> Event:
    """Returns an object for an entry of layout.EVENT."""
    return Event(
        number=int(entry["number"]),
        time=int(entry["time"]),
        type=EventType(int(entry["type"])),
        code=layout.STATUSES.get(int(entry["code"]), ""),
        value=int(entry["value"]),
        text=text_of(entry["text"]),
    )
