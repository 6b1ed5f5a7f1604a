"""Training with gradients in GPU memory. On the fake TensorFlow's own kernels compute nothing
there, so this is about where tensors go and not about what is learnt."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import fake_cuda
import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring.keras as hvd
from tfring.ops import library
from tfring.training.accumulation import LocalGradientAggregationHelper

GPUS = tf.config.list_physical_devices("GPU")
pytestmark = pytest.mark.skipif(not GPUS, reason="TensorFlow sees no GPU; see tests/gpu")
NCCL = os.environ.get("TFRING_GPU_OPERATIONS") == "nccl"
DETERMINISTIC = os.environ.get("TFRING_DETERMINISTIC") == "1"
ON_FAKE = "FAKE_CUDA_UUID" in os.environ


def copies() -> int:
    return fake_cuda.count("d2h_copies") + fake_cuda.count("h2d_copies")


def nccl_calls() -> int:
    """How often this rank has called the fake NCCL."""
    library = ctypes.CDLL(os.environ["TFRING_NCCL_LIBRARY"])
    library.FakeNcclCount.restype = ctypes.c_long
    return int(library.FakeNcclCount(b"kernels"))


@pytest.mark.skipif(not ON_FAKE, reason="counts what the fake driver counts")
def test_a_reduction_copies_nothing_to_the_host_with_nccl(several: int) -> None:
    with tf.device("CPU:0"):
        host = tf.ones([1000])
    with tf.device("GPU:0"):
        x = tf.identity(host)

    @tf.function
    def step(tensor: Any) -> Any:
        return [hvd.allreduce(tensor, op=hvd.Sum, name=f"counted.{i}") for i in range(3)]

    step(x)
    before = copies()
    results = [*step(x), hvd.allreduce(x, op=hvd.Sum, name="counted.eager")]
    hvd.barrier()
    made = copies() - before
    for result in results:
        np.testing.assert_array_equal(result.numpy(), np.full(1000, several, "float32"))
    # Staged, a tensor is copied twice at least; an eager call may return before the second copy.
    assert made == 0 if NCCL else made >= len(results)


@pytest.mark.skipif(not (DETERMINISTIC and NCCL), reason="see tests/gpu/test_jobs.py")
def test_deterministic_sums_are_calls_of_nccl_of_their_own(several: int) -> None:
    assert os.environ["NCCL_ALGO"] == "Ring" and os.environ["NCCL_PROTO"] == "Simple"
    with tf.device("CPU:0"):
        host = tf.fill([1], [1e8, 1.0, -1e8][hvd.rank()])
    with tf.device("GPU:0"):
        x = tf.identity(host)

    @tf.function
    def step(tensor: Any) -> Any:
        return [hvd.allreduce(tensor, op=hvd.Sum, name=f"own.{i}") for i in range(6)]

    step(x)
    calls, moved = nccl_calls(), copies()
    for _ in range(5):
        results = step(x)
    hvd.barrier()
    assert (nccl_calls() - calls, copies() - moved) == (30, 0)
    # The fake's ring sums up the second third of a call in an order that gives 1.
    assert [float(result[0]) for result in results] == [0.0] * 6


@pytest.mark.skipif(not (ON_FAKE and NCCL), reason="counts what the fake driver counts")
def test_after_the_first_steps_nothing_is_copied_from_the_gpu(several: int) -> None:
    """What a rank says in the reduction goes there, in one copy."""
    ones = np.ones(100, "float32")
    with tf.device("GPU:0"):
        weights = tf.Variable(ones)

    @tf.function
    def step() -> Any:
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(weights * weights)
        return tape.gradient(loss, [weights])

    def copied(steps: int) -> tuple[int, int]:
        before = fake_cuda.count("d2h_copies"), copies()
        for _ in range(steps):
            step()
        hvd.barrier()
        return fake_cuda.count("d2h_copies") - before[0], copies() - before[1]

    for _ in range(10):
        step()
    assert copied(5) == (0, 5)


def test_fit_reduces_gradients_in_place(several: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # The look at the first steps may still hold a few small gradients when they are reduced.
    monkeypatch.setenv("TFRING_CHECK_START", "0")
    layers = [keras.layers.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    # The fake leaves the new optimizer's count of steps as it finds the memory.
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), resumed=True)
    model.compile(optimizer=optimizer, loss="mse", jit_compile=False)
    x, y = np.ones((64, 8), "float32"), np.ones((64, 1), "float32")
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    model.fit(x, y, batch_size=16, verbose=0, callbacks=callbacks)
    forwarded = library.output_counters()["forwarded"]
    model.fit(x, y, batch_size=16, verbose=0)
    for variable in model.trainable_variables:
        assert variable.value.device.endswith("GPU:0")
    gradients = 4 * len(model.trainable_variables)
    assert library.output_counters()["forwarded"] - forwarded >= gradients


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_gradients_are_accumulated(size: int, dtype: str) -> None:
    """TensorFlow adds to a complex variable on a GPU by the host's kernel, which crashes."""
    values = np.array([1 + 2j, -3j], dtype)
    with tf.device("GPU:0"):
        variable, gradient = tf.Variable(values), tf.Variable(values)
    helper = LocalGradientAggregationHelper(2, name=f"complex.{dtype}")

    @tf.function
    def step() -> Any:
        return helper.compute_gradients([gradient * (hvd.rank() + 1.0)], [variable])[0]

    definition = step.get_concrete_function().graph.as_graph_def()
    bodies = [definition.node, *(function.node_def for function in definition.library.function)]
    adds = [node for nodes in bodies for node in nodes if node.op == "AssignAddVariableOp"]
    assert not [node.name for node in adds if tf.as_dtype(node.attr["dtype"].type).is_complex]
    if not ON_FAKE:  # its kernels of TensorFlow compute nothing, and count no passes
        step()
        np.testing.assert_allclose(step(), values * (size + 1), rtol=1e-6)


def test_the_scale_of_weights_stays_on_the_gpu(
    several: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host would wait in each step for a number that it puts into a table."""
    monkeypatch.setenv("TFRING_CHECK_START", "0")
    with tf.device("GPU:0"):
        variable = tf.Variable([1.0, 2.0])

    @tf.function
    def step(rows: Any) -> Any:
        with hvd.DistributedGradientTape(tf.GradientTape(), weight_by=rows) as tape:
            loss = tf.reduce_sum(variable * variable)
        return tape.gradient(loss, variable)

    graph = step.get_concrete_function(tf.TensorSpec([], tf.float32)).graph
    assert not [op.type for op in graph.get_operations() if "LookupTable" in op.type]
    kept = [v for v in graph.variables if v.name.startswith("weights_of_ranks")]
    assert [v.device.endswith("GPU:0") for v in kept] == [True]
    got = step(tf.constant(hvd.rank() + 1.0))
    if not ON_FAKE:  # its kernels of TensorFlow compute nothing
        np.testing.assert_allclose(got, [2.0, 4.0], rtol=1e-6)
