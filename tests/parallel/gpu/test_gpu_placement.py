"""Where collectives run on a machine with a GPU, what they block, and errors of tensors there."""

from __future__ import annotations

import os
import threading
from typing import Any

import fake_cuda
import numpy as np
import pytest
import tensorflow as tf

import tfring
from tfring.ops import library
from tfring.runtime._native import core

GPUS = tf.config.list_physical_devices("GPU")
pytestmark = pytest.mark.skipif(not GPUS, reason="TensorFlow sees no GPU; see tests/gpu")


def tensor_on(device: str, array: Any) -> Any:
    with tf.device("CPU:0"):
        host = tf.constant(array)
    with tf.device(device):
        return tf.identity(host)


def ones(device: str, dtype: str = "float32") -> Any:
    return tensor_on(device, np.ones(3, dtype))


@pytest.mark.parametrize("device", ["CPU:0", "GPU:0"])
def test_eager_results_are_where_the_tensors_are(device: str, size: int) -> None:
    reduced = tfring.allreduce(ones(device), op=tfring.Sum, name="where")
    gathered = tfring.allgather(ones(device), name="where.gathered")
    for result in (reduced, gathered):
        assert result.backing_device.endswith(device)
    np.testing.assert_array_equal(reduced.numpy(), np.full(3, size, "float32"))
    assert gathered.shape == (3 * size,)


def test_a_device_of_the_user_is_respected(size: int) -> None:
    with tf.device("GPU:0"):
        result = tfring.allreduce(ones("CPU:0"), op=tfring.Sum, name="to gpu")
    assert result.backing_device.endswith("GPU:0")
    with tf.device("CPU:0"):
        back = tfring.allreduce(ones("GPU:0"), op=tfring.Sum, name="to host")
    assert back.backing_device.endswith("CPU:0")
    np.testing.assert_array_equal(back.numpy(), result.numpy())


def test_int32_stays_on_the_host(size: int) -> None:
    for tensor in (tf.constant([1, 2]), ones("GPU:0", "int32")):
        result = tfring.allreduce(tensor, op=tfring.Sum, name="int32")
        assert result.backing_device.endswith("CPU:0")
        np.testing.assert_array_equal(result.numpy(), tensor.numpy() * size)

    @tf.function
    def ranks() -> Any:
        return tfring.rank_op(), tfring.size_op(), tfring.allreduce(tf.constant(2), name="two")

    np.testing.assert_array_equal([int(x) for x in ranks()], [tfring.rank(), size, 2])


def test_ranks_may_have_tensors_on_different_devices(rank: int, size: int) -> None:
    device = "CPU:0" if rank == 0 else "GPU:0"
    result = tfring.allreduce(ones(device), op=tfring.Sum, name="mixed")
    assert result.backing_device.endswith(device)
    np.testing.assert_array_equal(result.numpy(), np.full(3, size, "float32"))


def test_a_graph_places_collectives_on_the_gpu(size: int) -> None:
    """Its own inputs are forwarded: nothing is copied on the device either."""

    @tf.function
    def step(x: Any) -> Any:
        with tf.device("CPU:0"):
            y = x + 1.0
        with tf.device("GPU:0"):
            z = tf.identity(y)  # a copy, which nobody but the collective reads
        return tfring.allreduce(z, op=tfring.Sum, name="placed")

    before = library.output_counters()["forwarded"]
    for _ in range(10):  # TensorFlow's copy to the GPU may hold its result a moment longer
        result = step(ones("CPU:0"))
        assert result.backing_device.endswith("GPU:0")
        np.testing.assert_array_equal(result.numpy(), np.full(3, 2.0 * size, "float32"))
    assert library.output_counters()["forwarded"] > before


def test_errors_are_those_of_the_cpu(rank: int, several: int) -> None:
    with pytest.raises(tf.errors.FailedPreconditionError, match="shape"):
        tfring.allreduce(tensor_on("GPU:0", np.ones(3 + rank, "float32")), name="other shapes")
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"scalar|dimension"):
        tfring.allgather(tensor_on("GPU:0", np.float32(1)), name="gathered")
    result = tfring.allreduce(ones("GPU:0"), op=tfring.Sum, name="afterwards")
    np.testing.assert_array_equal(result.numpy(), np.full(3, several, "float32"))


def test_a_failed_step_ends_on_all_ranks(rank: int, several: int) -> None:
    @tf.function
    def step(x: Any, good: Any) -> Any:
        with tf.device("CPU:0"):
            check = tf.debugging.Assert(good, ["this rank fails"])
        with tf.control_dependencies([check]):
            return tfring.allreduce(tf.identity(x), op=tfring.Sum, name="failing")

    expected: Any = tf.errors.InvalidArgumentError if rank == 0 else tf.errors.AbortedError
    with pytest.raises(expected):
        step(ones("GPU:0"), tf.constant(rank != 0))
    result = step(ones("GPU:0"), tf.constant(True))
    np.testing.assert_array_equal(result.numpy(), np.full(3, several, "float32"))


def test_waiting_collectives_block_no_thread_of_tensorflow(rank: int, several: int) -> None:
    """More of them wait than there are threads; a function that needs threads ends meanwhile."""
    count = 4 * max(16, os.cpu_count() or 1)

    @tf.function
    def collectives(xs: Any) -> Any:
        return [tfring.allreduce(x, op=tfring.Sum, name=f"waiting.{i}") for i, x in enumerate(xs)]

    @tf.function
    def other_work(xs: Any) -> Any:
        with tf.device("CPU:0"):
            return tf.add_n([tf.linalg.matmul(x, x) for x in xs])

    def wait() -> None:
        results.extend(collectives([ones("GPU:0")] * count))

    results: list[Any] = []
    waiting = threading.Thread(target=wait, daemon=True)
    if rank == 0:
        waiting.start()
        while library.steps_in_flight() == 0:
            waiting.join(0.01)
        with tf.device("CPU:0"):
            other_work([tf.ones([8, 8]) for _ in range(8)])
        assert waiting.is_alive()
        core.barrier(name="rank 0 is ready")
    else:
        core.barrier(name="rank 0 is ready")
        waiting.start()
    waiting.join()
    assert len(results) == count
    np.testing.assert_array_equal(results[-1].numpy(), np.full(3, several, "float32"))


@pytest.mark.skipif(
    os.environ.get("TFRING_GPU_OPERATIONS") != "nccl" or "FAKE_CUDA_UUID" not in os.environ,
    reason="holds the streams of the fake CUDA driver",
)
def test_an_eager_call_returns_before_the_gpu_has_run(several: int) -> None:
    """While the streams start nothing; the result is right all the same."""
    x = ones("GPU:0")
    tfring.allreduce(x, op=tfring.Sum, name="held")  # makes the communicator
    fake_cuda.set_value("hold", 1)
    try:
        result = tfring.allreduce(x, op=tfring.Sum, name="held")
    finally:
        fake_cuda.set_value("hold", 0)
    np.testing.assert_array_equal(result.numpy(), np.full(3, several, "float32"))
