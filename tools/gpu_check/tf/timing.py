"""Steps that time collectives of tensors on GPU:0. Times on the fake mean nothing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import fake_cuda
import gpu_cells
import numpy as np
import tensorflow as tf

import tfring

ROUNDS = 3 if fake_cuda.is_driver() else 50
# Bytes of a tensor; on the fake, the processor adds.
SIZES = (
    [1 << 12, 1 << 16] if fake_cuda.is_driver() else [1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 28]
)
BUCKETS = 4


def median_of(rounds: int, timed: Callable[[], float]) -> float:
    """The median in microseconds, after one round that does not count."""
    timed()
    return round(statistics.median(timed() for _ in range(rounds)) * 1e6, 1)


def ones(elements: int) -> Any:
    return gpu_cells.on_gpu(np.ones(elements, np.float32))


def tf_done() -> dict[str, Any]:
    """Times when calls return and when results are ready: eager calls, a step of four buckets."""
    x = ones(1 << 20)
    buckets = [ones(1 << 20) for _ in range(BUCKETS)]

    def eager(wait: bool) -> float:
        tfring.barrier()
        begin = time.perf_counter()
        result = tfring.allreduce(x, op=tfring.Sum, name="eager")
        if wait:
            np.testing.assert_array_equal(result[:1].numpy(), [tfring.size()])
        seconds = time.perf_counter() - begin
        np.testing.assert_array_equal(result.numpy()[-1], tfring.size())
        return seconds

    @tf.function
    def graph(xs: Any) -> Any:
        return [tfring.allreduce(y, op=tfring.Sum, name=f"step.{i}") for i, y in enumerate(xs)]

    def step() -> float:
        tfring.barrier()
        begin = time.perf_counter()
        last = graph(buckets)[-1].numpy()
        seconds = time.perf_counter() - begin
        np.testing.assert_array_equal(last[-1], tfring.size())
        return seconds

    result: dict[str, Any] = {"eager_call_us": median_of(ROUNDS, lambda: eager(wait=False))}
    if not fake_cuda.is_driver():  # a slice is TensorFlow's own kernel
        result["eager_result_us"] = median_of(ROUNDS, lambda: eager(wait=True))
    result["step_us"] = median_of(ROUNDS, step)
    return result


def tf_speed() -> dict[str, Any]:
    """Allreduces in one function, one after the other, by bytes.

    For one of them, the time until the host goes on and the time until the GPU is done.
    """
    result: dict[str, Any] = {}
    repeats = 2 if fake_cuda.is_driver() else 10

    @tf.function
    def chain(y: Any) -> Any:
        for i in range(repeats):
            y = tfring.allreduce(y, op=tfring.Max, name=f"chain.{i}")
        return y

    for size in SIZES:
        x = ones(size // 4)
        np.testing.assert_array_equal(chain(x).numpy(), np.ones(size // 4))
        returned, done = [], []
        for _ in range(ROUNDS if size < 1 << 26 else 5):
            tfring.barrier()
            begin = time.perf_counter()
            chain(x)
            returned.append((time.perf_counter() - begin) / repeats)
            tf.test.experimental.sync_devices()
            done.append((time.perf_counter() - begin) / repeats)
        result[f"host_us_{size}"] = round(statistics.median(returned) * 1e6, 1)
        result[f"device_us_{size}"] = round(statistics.median(done) * 1e6, 1)
    return result
