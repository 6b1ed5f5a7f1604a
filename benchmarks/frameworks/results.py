"""Numbers of one job out of the files of its ranks, and of many jobs out of theirs."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.frameworks.models import BATCHES
from tfring.bench.samples import median_interval


def read_ranks(folder: Path, ranks: int) -> list[dict[str, Any]] | None:
    """Returns what the ranks have written; None if one has written nothing."""
    paths = [folder / f"rank-{rank}.json" for rank in range(ranks)]
    if not all(path.exists() for path in paths):
        return None
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def of_job(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the numbers of a job: each time is that of the slowest rank, in milliseconds."""
    kinds = list(found[0]["together"])
    first = kinds[0]
    start = max(rank["init_s"] + rank["together"][first]["build_s"] for rank in found)
    equal = all(len({rank["together"][kind]["weights"] for rank in found}) == 1 for kind in kinds)
    models = {kind: _of_model(found, kind) for kind in kinds}
    return {"start_s": start, "equal_weights": equal, "models": models}


def _of_model(found: list[dict[str, Any]], kind: str) -> dict[str, float]:
    alone = max(statistics.median(_steps(rank["alone"][kind])) for rank in found)
    together = np.array([_steps(rank["together"][kind]) for rank in found]).max(axis=0)
    step = float(np.median(together))
    network, moved, processor = _counts(found[0]["together"][kind])
    ratios = [
        _counts(rank["together"][kind])[2] / _counts(rank["alone"][kind])[2] for rank in found
    ]
    return {
        "alone_ms": alone * 1e3,
        "step_ms": step * 1e3,
        "overhead": step / alone,
        "processor_ms": processor * 1e3,
        "processor_overhead": max(ratios),
        "network_bytes": network / len(found),  # of a rank
        "moved_bytes": moved,
    }


def _counts(trained: dict[str, Any]) -> list[float]:
    """Returns what a step counted: bytes through the network, bytes moved, processor seconds."""
    first, last = trained["counts"][1], trained["counts"][-1]
    steps = BATCHES * (len(trained["counts"]) - 2)
    return [(end - begin) / steps for begin, end in zip(first, last, strict=True)]


def _steps(trained: dict[str, Any]) -> list[float]:
    """Returns the seconds of all steps but those of the first epoch, which compiles."""
    return [took for epoch in trained["epochs"][1:] for took in epoch]


def weights_off(folder: Path, reference: Path, kind: str) -> float:
    """Returns the largest difference of two weights, over the largest weight."""
    with np.load(folder / f"{kind}.npz") as ours, np.load(reference / f"{kind}.npz") as theirs:
        names = ours.files
        off = max(float(np.abs(ours[name] - theirs[name]).max()) for name in names)
        return off / max(float(np.abs(theirs[name]).max()) for name in names)


def summary(values: Sequence[float]) -> tuple[float, float, float]:
    """Returns the median over runs and its interval of 95 %; the extremes of fewer than three."""
    low, high = median_interval(values)
    low, high = max(low, min(values)), min(high, max(values))
    return statistics.median(values), low, high
