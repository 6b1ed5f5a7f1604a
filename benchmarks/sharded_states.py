"""Adam with shard_states=True beside plain Adam: the time of a step, and memory.

    mpirun -np 2 python -m benchmarks.sharded_states --json out.json
    mpirun -np 4 python -m benchmarks.sharded_states --memory sharded    # or: adam, sgd

"mlp" is a training step of an MLP of 20 million weights, whose update costs more than the rest.
"resnet50" reduces and applies gradients of ResNet-50's shapes, without computing them. In each
round both optimizers take a step.

--memory trains the MLP with one optimizer. It prints, of rank 0, the bytes of the optimizer's
states, the resident memory, the bytes of TensorFlow's tensors between steps, and how many more
there are within a step. TensorFlow's allocator counts the tensors, if oneDNN is on. What Adam's
states take is the difference to SGD, which has none. With --layers the same number of weights is in
more layers: if a step then needs less, gradients are freed before the last of them are there.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import common, resnet50
from tfring.bench.samples import ratio_interval

# Of a sharded step over a plain one; upper ends of intervals.
LIMITS = {"mlp": 0.9, "resnet50": 1.02}
_WEIGHTS, _LAYERS = 19_900_000, 4
_STEPS = 5


def mlp_step(optimizer: Any, count: int = _LAYERS, jit: bool = False) -> Callable[[], object]:
    """Returns a training step of an MLP with some number of equal layers, on four rows."""
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(1)
    width = math.isqrt(_WEIGHTS // count)
    layers = [keras.layers.Dense(width, "relu") for _ in range(count)]
    model = keras.Sequential([keras.Input([width]), *layers])
    rows = tf.random.stateless_normal([4, width], [1, 2])

    @tf.function(jit_compile=jit)  # type: ignore[untyped-decorator]
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(rows) - rows))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    return lambda: step()


def resnet50_step(optimizer: Any) -> Callable[[], object]:
    """Returns a step that applies ready gradients of ResNet-50's shapes."""
    import keras
    import tensorflow as tf

    weights = [keras.Variable(tf.zeros(shape)) for shape in resnet50.shapes()]
    gradients = [tf.random.stateless_normal(v.shape, [1, 2]) for v in weights]

    @tf.function  # type: ignore[untyped-decorator]
    def step() -> None:
        optimizer.apply([tf.identity(gradient) for gradient in gradients], weights)

    return lambda: step()


def make_optimizer(way: str) -> Any:
    """Returns the optimizer of a way: "sharded", "adam" or "sgd"."""
    import keras

    import tfring.keras as hvd

    plain = keras.optimizers.SGD() if way == "sgd" else keras.optimizers.Adam()
    return hvd.DistributedOptimizer(plain, shard_states=way == "sharded")


def measure(comm: Any, kind: str, repeats: int) -> dict[str, Any]:
    """Returns the row of one model."""
    make = {"mlp": mlp_step, "resnet50": resnet50_step}[kind]
    steps = {way: make(make_optimizer(way)) for way in ("adam", "sharded")}
    times = common.side_by_side(comm, steps, repeats)
    low, high = ratio_interval(times["adam"], times["sharded"])
    row: dict[str, Any] = {"model": kind}
    for way, took in times.items():
        row[f"{way}_ms"] = common.median(took)
    return {**row, "ratio": row["sharded_ms"] / row["adam_ms"], "low": low, "high": high}


def measure_memory(way: str, layers: int, jit: bool) -> dict[str, Any]:
    """Returns the memory of rank 0 after some steps, and of TensorFlow's tensors."""
    import tensorflow as tf

    optimizer = make_optimizer(way)
    step = mlp_step(optimizer, layers, jit)
    for _ in range(_STEPS):
        step()
    states = sum(math.prod(v.shape) * np.dtype(v.dtype).itemsize for v in optimizer.variables)
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    resident = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
    row = {"optimizer": way, "layers": layers, "jit": jit, "states_mb": states / 1e6}
    row["resident_mb"] = resident / 1e6
    try:
        tf.config.experimental.reset_memory_stats("CPU:0")
    except ValueError:  # without oneDNN TensorFlow's allocator counts nothing
        return row
    for _ in range(_STEPS):
        step()
    tensors = tf.config.experimental.get_memory_info("CPU:0")
    row["tensors_mb"] = tensors["current"] / 1e6
    row["step_mb"] = (tensors["peak"] - tensors["current"]) / 1e6
    return row


def main() -> int:
    """Measures; returns the exit code."""
    parser = common.parser(__doc__)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--memory", choices=("sharded", "adam", "sgd"))
    parser.add_argument("--layers", type=int, default=_LAYERS, help="of the MLP, with --memory")
    parser.add_argument("--jit", action="store_true", help="jit_compile=True, with --memory")
    arguments = parser.parse_args()

    import tfring.keras as hvd

    hvd.init()
    common.one_core()
    comm = common.world_comm()
    report = common.Report("sharded_states", hvd.size())
    if arguments.memory:
        report.rows.append(measure_memory(arguments.memory, arguments.layers, arguments.jit))
    for kind, limit in {} if arguments.memory else LIMITS.items():
        row = measure(comm, kind, arguments.repeats)
        report.rows.append(row)
        report.goals.append(common.Goal(f"{kind}: sharded over plain", row["high"], limit))
    code = report.finish(arguments.json) if hvd.rank() == 0 else 0
    hvd.shutdown()
    return code


if __name__ == "__main__":
    sys.exit(main())
