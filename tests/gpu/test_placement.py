"""TensorFlow's GPU wheel takes the fake driver for a GPU."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import gpu_fake
import pytest

PROGRAMS = Path(__file__).parent / "programs"
GPU = "/job:localhost/replica:0/task:0/device:GPU:0"


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What the program prints; it starts once, because TensorFlow's start is most of its time."""
    output = gpu_fake.run(PROGRAMS / "placement.py", seed=7, delay_us=2000)
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


def test_tensors_and_variables_live_on_the_gpu_and_come_back(found: dict[str, Any]) -> None:
    assert found["gpus"] == 1
    assert found["devices"] == [GPU] * 3
    assert found["values"] == [[1.0, 2.0, 3.0], [7.0, 8.0]]
    assert found["sum"] == sum(range(100_000))
    assert found["moved"] == [GPU.replace("GPU", "CPU"), [1.0, 2.0, 3.0]]


def test_the_driver_counts_copies_and_kernels(found: dict[str, Any]) -> None:
    assert found["d2h_bytes"] == 12 + 8 + 800_000
    assert found["launches"]
    assert found["product"] == GPU


def test_xla_compiles_for_the_gpu(found: dict[str, Any]) -> None:
    assert found["compiled"] == GPU
    assert found["compiled_launches"]


def test_the_host_cannot_read_memory_of_the_gpu(found: dict[str, Any]) -> None:
    assert found["signal"] == signal.SIGSEGV
    assert found["cpu_signal"] == 0


def test_a_result_comes_when_the_stream_has_run(found: dict[str, Any]) -> None:
    assert found["held"] == {"early": [], "late": [[4.0, 5.0]]}
