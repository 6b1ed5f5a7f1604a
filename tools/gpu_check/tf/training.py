"""Steps that train with Keras, and steps that compile with XLA."""

from __future__ import annotations

import re
from typing import Any

import fake_cuda
import gpu_cells
import keras
import keras_cases
import numpy as np
import tensorflow as tf

import tfring.keras as hvd
from tfring.ops import library
from tfring.training.options import ReduceOptions
from tfring.training.reducer import GradientReducer

STEPS = 6
COMPUTES = not fake_cuda.is_driver()  # on the fake, TensorFlow's own kernels do nothing
TOLERANCE = 1e-4  # GPUs add in a different order than one process


def _trained(**compile_arguments: Any) -> Any:
    """Trains a model by two fits of a few steps; returns it."""
    # On the fake, a new optimizer's step count is not initialised.
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
    """Trains with Keras' default compilation, which is XLA if possible."""
    return _facts(_trained())


def tf_xla_pair() -> dict[str, Any]:
    """Buckets in a function compiled by XLA: it starts all before it waits for the first."""
    count = 4
    reducer = GradientReducer(ReduceOptions(op=hvd.Sum, groups=count))

    @tf.function(jit_compile=True)
    def step(*xs: Any) -> Any:
        gradients = [x * 2.0 + 1.0 for x in xs] if COMPUTES else list(xs)
        sums = reducer.reduce(gradients, list(xs), name="pair")
        return [total / 2.0 for total in sums] if COMPUTES else sums

    rank, size = hvd.rank(), hvd.size()
    values = [np.arange(1000 * (i + 1), dtype=np.float32) for i in range(count)]
    with tf.device("GPU:0"):
        xs = [gpu_cells.on_gpu(value + rank) for value in values]
        for _ in range(3):
            results = step(*xs)
    for value, got in zip(values, results, strict=True):
        total = sum(value + r for r in range(size))
        want = total + size / 2.0 if COMPUTES else total
        assert got.backing_device.endswith("GPU:0"), got.backing_device
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-6)
    ir = step.experimental_get_compiler_ir(*xs)(stage="optimized_hlo", platform_name="GPU")
    calls = re.findall(r'custom_call_target="tfring_(\w+)"', ir)
    assert calls == ["start"] * count + ["done"] * count, calls
    return {"buckets": count}


def tf_equivalence() -> dict[str, Any]:
    """Checks that training together gives the weights of one process on all data, also with XLA."""
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
