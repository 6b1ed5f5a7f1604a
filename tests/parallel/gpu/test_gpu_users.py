"""Mistakes of users with GPUs, and collectives that NCCL cannot run."""

from __future__ import annotations

import logging
import os
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfring
from tfring.ops import placement
from tfring.runtime._native import core

GPUS = tf.config.list_physical_devices("GPU")
pytestmark = pytest.mark.skipif(not GPUS, reason="TensorFlow sees no GPU; see tests/gpu")

# All processes on the fake have the same GPU, unless they are given one each.
SHARED = "FAKE_CUDA_MEMORY_MIB" in os.environ and "FAKE_CUDA_UUID" not in os.environ


def tensor_on(device: str, array: Any) -> Any:
    with tf.device("CPU:0"):
        host = tf.constant(array)
    with tf.device(device):
        return tf.identity(host)


def check_allreduce(device: str, name: str) -> None:
    result = tfring.allreduce(tensor_on(device, np.ones(8, "f4")), op=tfring.Sum, name=name)
    assert result.backing_device.endswith(device)
    np.testing.assert_array_equal(result.numpy(), np.full(8, tfring.size(), "f4"))


@pytest.mark.skipif(len(GPUS) < 2, reason="needs two GPUs for each rank")
def test_a_second_gpu_of_a_rank_is_served_through_the_host(rank: int, several: int) -> None:
    check_allreduce("GPU:0", "own")
    check_allreduce("GPU:1", "second")
    # Also if it is another rank's first.
    check_allreduce("GPU:1" if rank == 0 else "GPU:0", "both")
    rows = tfring.allgather(tensor_on("GPU:1", np.full((1, 2), rank, "f4")), name="rows")
    np.testing.assert_array_equal(rows.numpy()[:, 0], np.arange(several))
    check_allreduce("GPU:0", "own")


@pytest.mark.skipif(len(GPUS) < 2, reason="needs two GPUs for each rank")
def test_a_rank_that_sees_gpus_of_others_says_so_once(
    rank: int, several: int, caplog: pytest.LogCaptureFixture
) -> None:
    placement._warn_of_gpus_of_others.cache_clear()
    with caplog.at_level(logging.WARNING, "tfring"):
        for _ in range(2):
            check_allreduce("GPU:0", "seen")
    (message,) = [record.getMessage() for record in caplog.records]
    assert f"rank {rank} sees {len(GPUS)} GPUs" in message
    assert "set_visible_devices" in message


@pytest.mark.skipif(not SHARED, reason="needs a GPU that all ranks use")
def test_ranks_on_one_gpu(several: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Staged with auto; with nccl an error that says which ranks, where, and what to do."""
    check_allreduce("GPU:0", "staged")
    tfring.shutdown()
    monkeypatch.setenv("TFRING_GPU_OPERATIONS", "nccl")
    tfring.init()
    for _ in range(2):
        with pytest.raises(tf.errors.UnimplementedError) as caught:
            check_allreduce("GPU:0", "refused")
        for part in (
            "ranks 0 and 1 use the same GPU, GPU-",
            f"of host {os.uname().nodename}",
            "set_visible_devices",
            "TFRING_GPU_OPERATIONS=auto",
        ):
            assert part in str(caught.value)
    check_allreduce("CPU:0", "on the host")
    assert core.is_initialized()
    tfring.shutdown()
    monkeypatch.undo()
    tfring.init()
    check_allreduce("GPU:0", "staged again")
