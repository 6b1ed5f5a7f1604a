"""The cost of the record: collectives with and without it, in turn.

    mpirun -np 2 python -m benchmarks.recorder_cost --json out.json

Within one job, half of the short runs of calls happen while the record is paused, in an order drawn
by chance: threads, connections and memory are the same, and the machine's other work changes
slowly beside a run of some milliseconds. Two neighbouring runs give one ratio, of the medians of
their calls. The result is the median of the ratios, with the 95 % interval of a bootstrap.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import common

TENSORS = 500
LIMIT_PERCENT = 1.0
LIMIT_MEBIBYTES = 4.0


@dataclass(frozen=True)
class Way:
    """A timed call, and the number of calls in a run."""

    call: Callable[[], object]
    calls: int


def ways() -> dict[str, Way]:
    """The timed calls, by name."""
    import tensorflow as tf

    import tfring as hvd
    from tfring.runtime._native import core

    number = np.ones(1, np.float32)
    scalar = tf.constant(1.0)
    tensors = [tf.random.normal((256,), seed=i) for i in range(TENSORS)]

    @tf.function
    def one(value: Any) -> Any:
        return hvd.allreduce(value, op=hvd.Sum, name="cost.one")

    @tf.function
    def grouped(values: list[Any]) -> list[Any]:
        return hvd.grouped_allreduce(values, op=hvd.Sum, name="cost.grouped")

    @tf.function
    def separate(values: list[Any]) -> list[Any]:
        return [
            hvd.allreduce(value, op=hvd.Sum, name=f"cost.{i}") for i, value in enumerate(values)
        ]

    return {
        "4 B, no TensorFlow": Way(
            lambda: core.allreduce(number, name="cost.4", op=hvd.Sum), calls=100
        ),
        "4 B": Way(lambda: one(scalar), calls=25),
        "500 x 1 KiB, grouped": Way(lambda: grouped(tensors), calls=3),
        "500 x 1 KiB, separate": Way(lambda: separate(tensors), calls=3),
    }


def run_of(way: Way) -> float:
    """The median time of a call in milliseconds."""
    took = []
    for _ in range(way.calls):
        started = time.perf_counter()
        way.call()
        took.append(time.perf_counter() - started)
    return float(np.median(took)) * 1e3


def paired(way: Way, seconds: float, order: random.Random) -> np.ndarray:
    """Times runs of calls with and without the record, for about `seconds` on rank 0.

    Args:
        way: The timed call.
        seconds: The duration.
        order: Random order; the same on all ranks, so that all pause the same runs.

    Returns:
        Milliseconds of a call; one row for each pair, with the record and without it.
    """
    import tfring as hvd
    from tfring.runtime._native import core

    run_of(way)
    started = time.perf_counter()
    rows = 10
    for _ in range(rows):
        run_of(way)
    pairs = int(seconds / (time.perf_counter() - started) * rows / 2) + 1
    took = []
    for _ in range(hvd.broadcast_object(pairs)):
        pair = {}
        for recorded in order.sample([True, False], 2):
            core.pause_record(not recorded)
            pair[recorded] = run_of(way)
        took.append((pair[True], pair[False]))
    core.pause_record(False)
    return np.array(took)


def interval(values: np.ndarray) -> tuple[float, float]:
    """The 95 % interval of the median, by 2,000 resamplings."""
    rng = np.random.default_rng(0)
    medians = [np.median(rng.choice(values, len(values))) for _ in range(2000)]
    low, high = np.percentile(medians, [2.5, 97.5])
    return float(low), float(high)


def row(name: str, took: np.ndarray) -> dict[str, Any]:
    ratios = took[:, 0] / took[:, 1]
    low, high = interval(ratios)
    return {
        "what": name,
        "without_ms": common.median(list(took[:, 1])),
        "cost_percent": (float(np.median(ratios)) - 1) * 100,
        "from": (low - 1) * 100,
        "to": (high - 1) * 100,
        "pairs": len(took),
    }


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=45.0, help="for each way")
    arguments = parser.parse_args()

    import tfring as hvd
    from tfring.observe.recorder.own import own_path

    hvd.init()
    common.one_core()
    order = random.Random(0)
    rows = [row(name, paired(way, arguments.seconds, order)) for name, way in ways().items()]
    record = own_path()
    if record is None:
        print("there is no record to measure: TFRING_RECORD is 0", file=sys.stderr)
        return 2
    if hvd.rank() != 0:
        return 0
    report = common.Report("recorder_cost", hvd.size(), rows=rows)
    for measured in rows:
        what = f"recorder, {measured['what']}, percent"
        report.goals.append(common.Goal(what, measured["cost_percent"], LIMIT_PERCENT))
    mebibytes = os.path.getsize(record) / 2**20
    report.goals.append(common.Goal("MiB of a record", mebibytes, LIMIT_MEBIBYTES))
    return report.finish(arguments.json)


if __name__ == "__main__":
    sys.exit(main())
