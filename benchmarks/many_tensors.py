"""Shared by the two benchmarks of many tensors: the candidates and the table."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import common


def candidates(shapes: Sequence[tuple[int, ...]], name: str) -> dict[str, Callable[[], object]]:
    """Raw MPI; a tf.function without allreduce, with a grouped one, and with separate ones."""
    from benchmarks.peers.mpi import mpi_call
    from tfring.bench.cases import set_case

    calls = set_case(name, shapes).build()
    spec = {"kind": "set", "counts": [math.prod(s) for s in shapes], "dtype": "float32"}
    ways = {way: calls[way] for way in ("grouped", "separate")}
    return {"open_mpi": mpi_call(spec, None), "without": calls["bare"], **ways}


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
