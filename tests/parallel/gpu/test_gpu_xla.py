"""Collectives in functions that XLA compiles for the GPU: values, places, order, errors, training.

On the double the kernels of XLA compute nothing, so tensors come from the host, through functions
that only pass them on.
"""

from __future__ import annotations

import os
from typing import Any

import fake_cuda
import numpy as np
import pytest
import tensorflow as tf

import tfring.keras as hvd
from tfring.ops import library

GPUS = tf.config.list_physical_devices("GPU")
pytestmark = pytest.mark.skipif(not GPUS, reason="TensorFlow sees no GPU; see tests/gpu")
NCCL = os.environ.get("TFRING_GPU_OPERATIONS") == "nccl"
ON_DOUBLE = "FAKE_CUDA_UUID" in os.environ


def on_gpu(array: Any) -> Any:
    with tf.device("CPU:0"):
        host = tf.constant(array)
    with tf.device("GPU:0"):
        return tf.identity(host)


def compiled(function: Any) -> Any:
    return tf.function(function, jit_compile=True)


def copies() -> int:
    return fake_cuda.count("d2h_copies") + fake_cuda.count("h2d_copies")


def test_values_stay_on_the_gpu(rank: int, size: int) -> None:
    @compiled
    def step(x: Any) -> Any:
        total = hvd.allreduce(x, op=hvd.Sum, name="gpu.xla.sum")
        rows = hvd.allgather(x, name="gpu.xla.rows")
        return total, rows, hvd.broadcast(x, size - 1, name="gpu.xla.last")

    x = np.arange(1000, dtype="float32") + rank
    everybody = [np.arange(1000, dtype="float32") + r for r in range(size)]
    for _ in range(3):
        total, rows, last = step(on_gpu(x))
        assert total.backing_device.endswith("GPU:0")
        np.testing.assert_array_equal(total.numpy(), sum(everybody))
        np.testing.assert_array_equal(rows.numpy(), np.concatenate(everybody))
        np.testing.assert_array_equal(last.numpy(), everybody[-1])
