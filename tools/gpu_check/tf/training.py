"""Steps that train with Keras, and that compile with XLA."""

from __future__ import annotations

from typing import Any

import fake_cuda
import gpu_cells
import keras
import keras_cases
import numpy as np
import tensorflow as tf

import tfring.keras as hvd
from tfring.ops import library

STEPS = 6
COMPUTES = not fake_cuda.is_driver()  # on the double TensorFlow's own kernels do nothing
TOLERANCE = 1e-4  # GPUs add in another order than one process does


def _trained(**compile_arguments: Any) -> Any:
    """A model after two fits of a few steps."""
    # The double leaves a new optimizer's count of steps as it finds the memory.
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), resumed=not COMPUTES)
    model = keras_cases.build_model(1 + hvd.rank())
    model.compile(optimizer=optimizer, loss=keras_cases.loss(), **compile_arguments)
    first = keras_cases.fit(model, keras_cases.broadcast(), steps=STEPS)
    last = keras_cases.fit(model, steps=STEPS)
    for variable in model.trainable_variables:
        assert variable.value.device.endswith("GPU:0"), variable.value.device
    if COMPUTES:
        keras_cases.assert_same_on_all_ranks(model)
        assert last.history["loss"][-1] < first.history["loss"][0], "the loss does not fall"
    return model


def _facts(model: Any) -> dict[str, Any]:
    return {"jit_compile": bool(model.jit_compile), "values_checked": COMPUTES}


def tf_keras_fit() -> dict[str, Any]:
    """Trains without XLA; gradients are reduced in place on the GPU."""
    forwarded = library.output_counters()["forwarded"]
    model = _trained(jit_compile=False)
    result = _facts(model)
    result["forwarded"] = library.output_counters()["forwarded"] - forwarded
    assert result["forwarded"] >= STEPS * len(model.trainable_variables), "gradients were copied"
    return result


def tf_keras_default() -> dict[str, Any]:
    """Trains as Keras compiles it by itself, which is with XLA where that is possible."""
    return _facts(_trained())


def tf_xla_pair() -> dict[str, Any]:
    """Two reductions in a function that XLA compiles for the GPU."""

    @tf.function(jit_compile=True)
    def step(x: Any, y: Any) -> Any:
        if COMPUTES:
            x, y = x * 2.0 + 1.0, y - 1.0
        total = hvd.allreduce(x, op=hvd.Sum, name="xla.sum")
        largest = hvd.allreduce(y, op=hvd.Max, name="xla.max")
        return (total / 2.0, largest * 3.0) if COMPUTES else (total, largest)

    rank, size = hvd.rank(), hvd.size()
    values = np.arange(1000, dtype=np.float32)
    for _ in range(3):
        with tf.device("GPU:0"):
            total, largest = step(gpu_cells.on_gpu(values + rank), gpu_cells.on_gpu(values * rank))
        ranks = np.arange(size, dtype=np.float32)[:, None]
        if COMPUTES:
            want = (2.0 * (values + ranks) + 1.0).sum(0) / 2.0, 3.0 * (values * (size - 1) - 1.0)
        else:
            want = (values + ranks).sum(0), values * (size - 1)
        for got, expected in zip((total, largest), want, strict=True):
            assert got.backing_device.endswith("GPU:0"), got.backing_device
            np.testing.assert_allclose(got.numpy(), expected, rtol=1e-6)
    return {"values_checked": True}


def tf_equivalence() -> dict[str, Any]:
    """Training together gives the weights that one process gets from all data, also with XLA."""
    sgd = {"learning_rate": 0.1, "momentum": 0.9}
    alone = keras_cases.train_alone(keras.optimizers.SGD(**sgd), STEPS, 1)
    largest = 0.0
    for compile_arguments in ({}, {"jit_compile": False}):
        model = keras_cases.train_together(
            keras.optimizers.SGD(**sgd), STEPS, 1, **compile_arguments
        )
        for ours, theirs in zip(model.get_weights(), alone, strict=True):
            largest = max(largest, float(np.max(np.abs(ours - theirs))))
    assert largest <= TOLERANCE, f"the weights differ by {largest}"
    return {"largest_difference": largest}
