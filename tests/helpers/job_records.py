"""Records of jobs that never ran, with the times that a test gives; in microseconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tfring.recorder import layout
from tfring.recorder.job import JobRecords, load_job

US = 1000


def write_records(
    folder: Path,
    calls: dict[int, list[dict[str, Any]]],
    plans: dict[int, list[dict[str, Any]]],
    events: dict[int, list[dict[str, Any]]] | None = None,
    shift: dict[int, int] | None = None,
) -> list[Path]:
    """Writes a record for each rank of `calls`.

    Names are those of the entries in layout.py; times are in microseconds. `shift`
    has the ranks on hosts of their own, whose clocks are so many microseconds ahead.
    """
    files = []
    for rank in calls:
        ahead = (shift or {}).get(rank, 0)
        header = np.zeros(1, layout.HEADER)
        rings = {
            "call": _ring(layout.CALL, calls[rank], "number", ahead),
            "plan": _ring(layout.PLAN, plans.get(rank, []), "sequence", ahead),
            "event": _ring(layout.EVENT, (events or {}).get(rank, []), "number", ahead),
            "rank": np.zeros(len(calls), layout.RANK),
        }
        values = {"magic": layout.MAGIC, "version": layout.VERSION, "rank": rank}
        values |= {"size": len(calls), "header_bytes": layout.HEADER_BYTES, "state": 1}
        values |= {"job": b"made", "host": f"host{rank}".encode(), "pid": 100 + rank}
        values |= {"boot": f"boot {rank if ahead else 0}".encode(), "generation": 1}
        for name, ring in rings.items():
            values |= {f"{name}_bytes": ring.itemsize, f"{name}_slots": len(ring)}
        for name, value in values.items():
            header[name] = value
        files.append(folder / f"rank-{rank}.record")
        files[-1].write_bytes(header.tobytes() + b"".join(r.tobytes() for r in rings.values()))
    return files


def made_job(folder: Path, *arguments: Any, **more: Any) -> JobRecords:
    """A job with the records that write_records makes."""
    return load_job(write_records(folder, *arguments, **more))


_TIMES = {
    *("submitted", "first_asked", "second_last_asked", "last_asked", "planned", "ended"),
    *("queued", "started", "launched", "time"),
}


def _ring(dtype: np.dtype, entries: list[dict[str, Any]], key: str, ahead: int) -> np.ndarray:
    ring = np.zeros(len(entries), dtype)
    for at, entry in enumerate(entries):
        values = {key: at + 1, **entry}
        if "last_rank" in (dtype.names or ()):
            values = {"last_rank": -1, **values}
        for name, value in values.items():
            ring[at][name] = (value + ahead) * US if name in _TIMES and value else value
    return ring
