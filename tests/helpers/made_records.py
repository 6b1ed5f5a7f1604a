"""Writes record files of jobs that never ran, as the runtime would write them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tfring.observe.recorder import layout
from tfring.observe.recorder.job import JobRecords, load_job
from tfring.observe.recorder.processes import own_boot

NOBODY = 4194304  # above the largest process id
US, MS = 1_000, 1_000_000
SLOTS = {"call": 8192, "plan": 4096, "event": 256}
Entries = Iterable[Mapping[str, Any]]
ByRank = Mapping[int, list[dict[str, Any]]]


def gradient_name(bucket: int = 0, optimizer: int = 0) -> str:
    """The name that an optimizer gives to the reduction of a bucket."""
    return f"tfring.optimizer.{optimizer}.0.{bucket}"


def entries(dtype: np.dtype[Any], rows: Entries) -> np.ndarray[Any, Any]:
    """An array of entries with these fields; numbers the entries unless `rows` does.

    All other fields have the runtime's values for "unknown".
    """
    rows = list(rows)
    made = np.zeros(len(rows), dtype)
    if dtype == layout.CALL:
        made["last_rank"] = made["peer"] = made["shapes"] = -1
        made["tensors"] = 1
    key = "sequence" if dtype == layout.PLAN else "number"
    if key in (dtype.names or ()):
        made[key] = np.arange(1, len(rows) + 1)
    for entry, row in zip(made, rows, strict=True):
        for name, value in row.items():
            entry[name] = value.encode() if isinstance(value, str) else value
    return made


def write_record(
    path: Path,
    rank: int = 0,
    size: int = 2,
    calls: Entries = (),
    plans: Entries = (),
    events: Entries = (),
    slots: Mapping[str, int] = SLOTS,
    ranks: Entries = (),
    **header: Any,
) -> Path:
    """Writes a record with these entries and facts of each rank; returns the path."""
    made = {
        "call": entries(layout.CALL, calls),
        "plan": entries(layout.PLAN, plans),
        "event": entries(layout.EVENT, events),
    }
    rings = {name: _ring(rows, slots[name]) for name, rows in made.items()}
    rings["rank"] = entries(layout.RANK, ranks or [{}] * size)
    head = {
        "magic": layout.MAGIC,
        "version": layout.VERSION,
        "header_bytes": layout.HEADER_BYTES,
        **{f"{name}_bytes": ring.itemsize for name, ring in rings.items()},
        **{f"{name}_slots": len(ring) for name, ring in rings.items()},
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
        "calls": made["call"]["number"].max(initial=0),
        **header,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = [entries(layout.HEADER, [head]), *rings.values()]
    path.write_bytes(b"".join(part.tobytes() for part in parts))
    return path


def _ring(rows: np.ndarray[Any, Any], slots: int) -> np.ndarray[Any, Any]:
    ring = np.zeros(slots, rows.dtype)
    for entry in rows:
        key = entry["sequence" if rows.dtype == layout.PLAN else "number"]
        ring[(int(key) - 1) % slots] = entry
    return ring


_TIMES = {
    "submitted",
    "first_asked",
    "second_last_asked",
    "last_asked",
    "planned",
    "ended",
    "queued",
    "started",
    "launched",
    "time",
}


def write_records(
    folder: Path,
    calls: ByRank,
    plans: ByRank,
    events: ByRank | None = None,
    shift: Mapping[int, int] | None = None,
    slots: Mapping[str, int] = SLOTS,
) -> list[Path]:
    """Writes a record for each rank of `calls`, with times in microseconds.

    With `shift` each rank has its own host, whose clock is ahead by that many microseconds.
    """
    files = []
    for rank in calls:
        ahead = (shift or {}).get(rank, 0)
        rows = [
            [_in_nanoseconds(one, ahead) for one in of_rank.get(rank, [])]
            for of_rank in (calls, plans, events or {})
        ]
        where = {"host": f"host{rank}", "boot": f"boot {rank if ahead else 0}", "pid": 100 + rank}
        path = folder / f"rank-{rank}.record"
        files.append(write_record(path, rank, len(calls), *rows, slots, job="made", **where))
    return files


def _in_nanoseconds(row: Mapping[str, Any], ahead: int) -> dict[str, Any]:
    return {k: (v + ahead) * US if k in _TIMES and v else v for k, v in row.items()}


def made_job(folder: Path, *arguments: Any, **more: Any) -> JobRecords:
    """A job with the records that write_records makes."""
    return load_job(write_records(folder, *arguments, **more))


def write_training(
    folder: Path,
    own: Any,
    transport: float = 2.0,
    buckets: int = 2,
    state: layout.RankState = layout.RankState.LEFT,
    host: str = "here",
    **more: Any,
) -> Path:
    """Writes the records of a job whose steps each take as long as their slowest rank.

    Args:
        folder: The folder of the files.
        own: Milliseconds of own work by rank and step; a bucket is ready after each equal part.
        transport: Milliseconds of the reduction of a bucket.
        buckets: The number of buckets. Each rank sends their bytes to the next rank.
        state: The state of all ranks.
        host: The host of all ranks.
        more: Additional fields of the header of each record.
    """
    own = np.asarray(own, dtype=float)
    size, count = own.shape
    calls: list[list[dict[str, Any]]] = [[] for _ in range(size)]
    now = 1000 * MS
    for step in range(count):
        free = now
        for bucket in range(buckets):
            ready = now + np.round(own[:, step] * (bucket + 1) / buckets * MS).astype(np.int64)
            order = np.argsort(ready, kind="stable")
            complete = int(ready[order[-1]])
            planned = max(free, complete)
            free = planned + round(transport * MS)
            for rank in range(size):
                asked = {
                    "first_asked": ready[order[0]],
                    "second_last_asked": ready[order[-2]] if size > 1 else complete,
                    "last_asked": complete,
                    "last_rank": order[-1],
                }
                calls[rank].append(
                    {
                        "name": gradient_name(bucket),
                        "invocation": step + 1,
                        "flags": int(layout.CallFlags.BUCKET),
                        "submitted": ready[rank],
                        "planned": planned,
                        "ended": free,
                        "bytes": 1000 * (bucket + 1),
                        "sequence": step * buckets + bucket + 1,
                        **(asked if rank == 0 else {}),
                    }
                )
        now = free
    header = {"host": host, "job": "planted", "state": state, **more}
    header["bytes_sent"] = sent = 500 * buckets * (buckets + 1) * count
    for rank in range(size):
        path = folder / f"rank-{rank}.record"
        to = [{"sent": sent * (size > 1 and other == (rank + 1) % size)} for other in range(size)]
        write_record(path, rank, size, calls[rank], ranks=to, ended=len(calls[rank]), **header)
    return folder
