"""Record files as the runtime would write them, made from numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tfring.recorder import layout
from tfring.recorder.reader import own_boot

CALL_SLOTS, PLAN_SLOTS, EVENT_SLOTS = 8192, 4096, 256
NOBODY = 4194304  # above the largest process id
Entries = Iterable[Mapping[str, Any]]


def write_record(
    path: Path,
    rank: int = 0,
    size: int = 2,
    calls: Entries = (),
    plans: Entries = (),
    events: Entries = (),
    **header: Any,
) -> Path:
    """Writes a record whose entries have these fields, and 0 in the others; returns the path."""
    head = _entries(layout.HEADER, [_header(rank, size, header)])
    called = [{"last_rank": -1, "peer": -1, "tensors": 1, **call} for call in calls]
    numbers = [call["number"] for call in called]
    head["calls"] = max(numbers, default=0)
    shapes = np.zeros((), layout.CALL)["shapes"]
    shapes[:] = -1
    called = [{"shapes": shapes, **call} for call in called]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        head.tobytes()
        + _ring(layout.CALL, called, "number", CALL_SLOTS)
        + _ring(layout.PLAN, plans, "sequence", PLAN_SLOTS)
        + _ring(layout.EVENT, events, "number", EVENT_SLOTS)
        + bytes(size * layout.RANK.itemsize)
    )
    return path


def _header(rank: int, size: int, more: Mapping[str, Any]) -> dict[str, Any]:
    rings = {
        "call": (layout.CALL, CALL_SLOTS),
        "plan": (layout.PLAN, PLAN_SLOTS),
        "event": (layout.EVENT, EVENT_SLOTS),
        "rank": (layout.RANK, size),
    }
    return {
        "magic": layout.MAGIC,
        "version": layout.VERSION,
        "header_bytes": layout.HEADER_BYTES,
        **{f"{name}_bytes": dtype.itemsize for name, (dtype, _) in rings.items()},
        **{f"{name}_slots": slots for name, (_, slots) in rings.items()},
        "rank": rank,
        "size": size,
        "pid": NOBODY,
        "generation": 1,
        "step": -1,
        "state": layout.RankState.RUNNING,
        "boot": own_boot(),
        "host": "host",
        "job": "a-job",
        "pid_space": Path("/proc/self/ns/pid").stat().st_ino,
        **more,
    }


def _entries(dtype: np.dtype[Any], rows: Entries) -> np.ndarray[Any, Any]:
    rows = list(rows)
    made = np.zeros(len(rows), dtype)
    for entry, row in zip(made, rows, strict=True):
        for name, value in row.items():
            entry[name] = value.encode() if isinstance(value, str) else value
    return made


def _ring(dtype: np.dtype[Any], rows: Entries, key: str, slots: int) -> bytes:
    ring = np.zeros(slots, dtype)
    for entry in _entries(dtype, rows):
        ring[(int(entry[key]) - 1) % slots] = entry
    return ring.tobytes()
