"""Writes records of jobs that never ran: files as the runtime writes them, with given times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tfring.recorder import layout
from tfring.recorder.reader import own_boot

_SLOTS = {"call": 8192, "plan": 4096, "event": 256}
_TYPES = {"call": layout.CALL, "plan": layout.PLAN, "event": layout.EVENT, "rank": layout.RANK}
MS = 1_000_000


def write_record(path: Path, rank: int, size: int, **more: Any) -> Path:
    """Writes the record of one rank.

    Args:
        path: The file.
        rank: Whose.
        size: The number of ranks.
        more: "calls", "plans", "events": lists of dictionaries of fields, in order; anything else:
            fields of the header.
    """
    header = np.zeros(1, layout.HEADER)
    slots = {**_SLOTS, "rank": size}
    fields = {
        "magic": layout.MAGIC,
        "version": layout.VERSION,
        "header_bytes": layout.HEADER_BYTES,
        **{f"{name}_bytes": dtype.itemsize for name, dtype in _TYPES.items()},
        **{f"{name}_slots": count for name, count in slots.items()},
        "rank": rank,
        "size": size,
        "boot": own_boot(),
        "host": "here",
        "job": "planted",
        "started_wall": 1,
        "started_monotonic": 1,
        "state": layout.RankState.LEFT,
    }
    fields.update({k: v for k, v in more.items() if k not in ("calls", "plans", "events")})
    for name, value in fields.items():
        header[name] = value.encode() if isinstance(value, str) else value
    parts = [header.tobytes()]
    for name, dtype in _TYPES.items():
        ring = np.zeros(slots[name], dtype)
        for number, entry in enumerate(more.get(f"{name}s", ()), 1):
            slot = ring[(number - 1) % len(ring)]
            slot["sequence" if name == "plan" else "number"] = number
            for field, value in entry.items():
                slot[field] = value.encode() if isinstance(value, str) else value
        parts.append(ring.tobytes())
    path.write_bytes(b"".join(parts))
    return path


def write_training(folder: Path, own: Any, transport: float = 2.0, buckets: int = 2) -> Path:
    """Writes the records of a job in which every step takes as long as its slowest rank.

    Args:
        folder: For the files.
        own: Milliseconds of own work by rank and step; a bucket is ready after each equal part.
        transport: Milliseconds for which a bucket is reduced.
        buckets: How many there are.
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
                        "name": f"bucket {bucket}",
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
    for rank in range(size):
        write_record(
            folder / f"rank-{rank}.record", rank, size, calls=calls[rank], ended=len(calls[rank])
        )
    return folder
