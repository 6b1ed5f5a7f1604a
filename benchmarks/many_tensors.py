"""What the two benchmarks of many tensors share: the candidates and the table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks import common


def candidates(
    shapes: Sequence[tuple[int, ...]], comm: Any, name: str
) -> dict[str, Callable[[], object]]:
    """Raw MPI; a tf.function without allreduce, with a grouped one, and with separate ones."""
    import tensorflow as tf
    from mpi4py import MPI

    import tfring as hvd

    tensors = [tf.random.normal(shape, seed=hvd.rank()) for shape in shapes]
    sent = [tensor.numpy() for tensor in tensors]
    received = [np.empty_like(array) for array in sent]

    @tf.function
    def without(values: list[Any]) -> list[Any]:
        return [value * 0.5 for value in values]

    @tf.function
    def grouped(values: list[Any]) -> list[Any]:
        halves = [value * 0.5 for value in values]
        return hvd.grouped_allreduce(halves, op=hvd.Sum, name=f"{name}.grouped")

    @tf.function
    def separate(values: list[Any]) -> list[Any]:
        return [
            hvd.allreduce(value * 0.5, op=hvd.Sum, name=f"{name}.{i}")
            for i, value in enumerate(values)
        ]

    def open_mpi() -> None:
        pairs = zip(sent, received, strict=True)
        MPI.Request.Waitall([comm.Iallreduce(a, b) for a, b in pairs])

    return {
        "open_mpi": open_mpi,
        "without": lambda: without(tensors),
        "grouped": lambda: grouped(tensors),
        "separate": lambda: separate(tensors),
    }


def rows(times: dict[str, list[float]]) -> list[dict[str, Any]]:
    """One row per candidate; for tfring the time that the reduction adds to the function."""
    made: list[dict[str, Any]] = [
        {"way": "Open MPI, Iallreduce", "median_ms": common.median(times["open_mpi"])}
    ]
    for name in ("grouped", "separate"):
        added = common.median_difference(times[name], times["without"])
        made.append({"way": f"tfring, {name}", "median_ms": added})
    for row in made:
        row["over_open_mpi"] = row["median_ms"] / made[0]["median_ms"]
    return made
