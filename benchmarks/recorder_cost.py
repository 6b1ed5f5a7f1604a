"""What the record costs: collectives with it and without it, in turn.

    mpirun -np 2 python -m benchmarks.recorder_cost --json out.json

The ranks init again and again, every other time with TFRING_RECORD=0, and time the same calls. Of
the calls between an init and its shutdown the time counts that a tenth of them beats: slower ones
were disturbed by whatever else ran on the machine. Each pair of neighbours gives a ratio. The
result is the median of the ratios, with the 95 % interval of a bootstrap.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import common

TENSORS = 500
LIMIT_PERCENT = 1.0
LIMIT_MEBIBYTES = 4.0


def candidates() -> dict[str, tuple[Callable[[], object], int]]:
    """What is timed, and how many calls are timed in a row."""
    import tensorflow as tf

    import tfring as hvd
    from tfring._native import core

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
        "4 B, no TensorFlow": (lambda: core.allreduce(number, name="cost.4", op=hvd.Sum), 2000),
        "4 B": (lambda: one(scalar), 1000),
        "500 x 1 KiB, grouped": (lambda: grouped(tensors), 60),
        "500 x 1 KiB, separate": (lambda: separate(tensors), 60),
    }


def timed(call: Callable[[], object], calls: int) -> float:
    """The time in milliseconds that a tenth of the calls beats."""
    took = []
    for _ in range(calls):
        started = time.perf_counter()
        call()
        took.append(time.perf_counter() - started)
    return float(np.percentile(took, 10)) * 1e3


def one_generation(ways: dict[str, Any], record: bool) -> tuple[dict[str, float], int]:
    """Milliseconds by way between an init and its shutdown, and the bytes of the record."""
    import tfring as hvd
    from tfring.recorder.own import own_path

    os.environ["TFRING_RECORD"] = "1" if record else "0"
    hvd.init()
    path = own_path()
    size = os.path.getsize(path) if path else 0
    took = {}
    for name, (call, calls) in ways.items():
        timed(call, calls // 10)
        took[name] = timed(call, calls)
    hvd.shutdown()
    return took, size


def interval(values: np.ndarray) -> tuple[float, float]:
    """The 95 % interval of the median, by 10,000 resamplings."""
    rng = np.random.default_rng(0)
    medians = np.median(rng.choice(values, (10_000, len(values))), axis=1)
    low, high = np.percentile(medians, [2.5, 97.5])
    return float(low), float(high)


def rows(ratios: dict[str, np.ndarray], without: dict[str, list[float]]) -> list[dict[str, Any]]:
    made = []
    for name, values in ratios.items():
        low, high = interval(values)
        made.append(
            {
                "what": name,
                "without_ms": common.median(without[name]),
                "cost_percent": (float(np.median(values)) - 1) * 100,
                "from": (low - 1) * 100,
                "to": (high - 1) * 100,
                "pairs": len(values),
            }
        )
    return made


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--pairs", type=int, default=30)
    arguments = parser.parse_args()

    import tfring as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    common.one_core()
    ways = candidates()
    hvd.shutdown()
    took: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    largest = 0
    order = random.Random(0)  # the same on all ranks
    for _ in range(arguments.pairs):
        for record in order.sample([True, False], 2):
            times, file = one_generation(ways, record)
            took[record].append(times)
            largest = max(largest, file)
    if rank != 0:
        return 0
    without = {name: [times[name] for times in took[False]] for name in ways}
    ratios = {
        name: np.array([times[name] for times in took[True]]) / np.array(without[name])
        for name in ways
    }
    report = common.Report("recorder_cost", size, rows=rows(ratios, without))
    for row in report.rows:
        what = f"recorder, {row['what']}, percent"
        report.goals.append(common.Goal(what, row["cost_percent"], LIMIT_PERCENT))
    report.goals.append(common.Goal("MiB of a record", largest / 2**20, LIMIT_MEBIBYTES))
    return report.finish(arguments.json)


if __name__ == "__main__":
    sys.exit(main())
