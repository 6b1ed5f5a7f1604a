"""The cost of the ranks' weights: steps of `fit` with and without them, in turn.

    mpirun -np 2 python -m benchmarks.weight_cost --json out.json

Two models of the same kind take turns in short runs of steps, in an order drawn by chance. The
ranks' batches are equal, so the weights change nothing: one optimizer exchanges them
(weight_by="loss", the default), the other does not (weight_by=None). Two neighbouring runs give one
ratio, of the medians of their steps. The result is the median of the ratios, with the 95 % interval
of a bootstrap.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import common
from benchmarks.recorder_cost import Way, row, run_of

STEPS = 10  # of a run
LIMIT_PERCENT = 1.0


def step_of(weight_by: Any) -> Callable[[], object]:
    """Returns the step that `fit` calls, of the MLP of the other benchmarks."""
    import keras
    import tensorflow as tf

    import tfring.keras as hvd
    from tfring.bench import models

    model = models.build("mlp")
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), weight_by=weight_by),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    images = tf.random.normal([models.BATCH, 28, 28, 1])
    labels = tf.random.uniform([models.BATCH], maxval=10, dtype=tf.int32)
    signature = (tf.TensorSpec([None, 28, 28, 1]), tf.TensorSpec([None], tf.int32))
    endless = tf.data.Dataset.from_tensors((images, labels)).repeat()
    batches = iter(endless.map(lambda *batch: _unknown(batch, signature)))
    model.make_train_function()
    return lambda: model.train_function(batches)


def _unknown(batch: Any, signature: Any) -> Any:
    """Makes the number of rows known only at run time, as in `fit`."""
    import tensorflow as tf

    return tuple(
        tf.ensure_shape(tf.compat.v1.placeholder_with_default(values, spec.shape), spec.shape)
        for values, spec in zip(batch, signature, strict=True)
    )


def paired(ways: dict[bool, Way], seconds: float) -> np.ndarray:
    """Returns milliseconds per step; one row for each pair of runs, with and without weights.

    Args:
        ways: The timed steps, with and without weights.
        seconds: The approximate duration on rank 0.
    """
    import tfring as hvd

    order = random.Random(0)
    for way in (*ways.values(), *ways.values()):
        run_of(way)
    started = time.perf_counter()
    for way in (*ways.values(), *ways.values()):
        run_of(way)
    pairs = int(seconds / (time.perf_counter() - started) * 2) + 1
    took = []
    for _ in range(hvd.broadcast_object(pairs)):
        pair = {weighed: run_of(ways[weighed]) for weighed in order.sample([True, False], 2)}
        took.append((pair[True], pair[False]))
    return np.array(took)


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()

    import tfring as hvd

    hvd.init()
    common.one_core()
    ways = {weighed: Way(step_of("loss" if weighed else None), STEPS) for weighed in (True, False)}
    measured = row("step of the MLP in fit", paired(ways, arguments.seconds))
    if hvd.rank() != 0:
        return 0
    report = common.Report("weight_cost", hvd.size(), rows=[measured])
    report.goals.append(common.Goal("weights, percent", measured["cost_percent"], LIMIT_PERCENT))
    return report.finish(arguments.json)


if __name__ == "__main__":
    sys.exit(main())
