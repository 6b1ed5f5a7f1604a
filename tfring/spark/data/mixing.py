"""Mixes rows, and cuts them into batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

# Rows: of each column an array whose first dimension is the rows.
Rows = dict[str, np.ndarray[Any, Any]]


def count(rows: Rows) -> int:
    """Returns the number of rows; there must be at least one column."""
    return len(next(iter(rows.values())))


def mixed(pieces: Iterator[Rows], capacity: int, random: np.random.Generator) -> Iterator[Rows]:
    """Yields rows in another order: each new row takes the place of a waiting one.

    Args:
        pieces: the rows.
        capacity: the most waiting rows.
        random: chooses the row to yield.
    """
    waiting: Rows = {}
    used = 0
    for rows in pieces:
        at, number = 0, count(rows)
        if not waiting:
            waiting = {n: np.empty((capacity, *v.shape[1:]), v.dtype) for n, v in rows.items()}
        if used < capacity:
            at = min(capacity - used, number)
            for name, values in rows.items():
                waiting[name][used : used + at] = values[:at]
            used += at
        for start in range(at, number, capacity):
            places = random.choice(capacity, min(capacity, number - start), replace=False)
            gone = {name: values[places] for name, values in waiting.items()}
            for name, values in rows.items():
                waiting[name][places] = values[start : start + len(places)]
            yield gone
    order = random.permutation(used)
    # In parts, so the rest is not in memory twice.
    step = max(1, capacity // 8)
    for start in range(0, used, step):
        places = order[start : start + step]
        yield {name: values[places] for name, values in waiting.items()}


def rebatched(pieces: Iterator[Rows], batch_size: int) -> Iterator[Rows]:
    """Yields rows in batches of one size; the last may be smaller.

    Args:
        pieces: the rows.
        batch_size: rows of a batch.
    """
    parts: list[Rows] = []
    missing = batch_size
    for rows in pieces:
        at, number = 0, count(rows)
        while number - at >= missing:
            parts.append({name: values[at : at + missing] for name, values in rows.items()})
            at += missing
            yield _joined(parts)
            parts, missing = [], batch_size
        if at < number:
            # A copy: a view would keep the whole piece in memory.
            parts.append({name: values[at:].copy() for name, values in rows.items()})
            missing -= number - at
    if parts:
        yield _joined(parts)


def _joined(parts: list[Rows]) -> Rows:
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
