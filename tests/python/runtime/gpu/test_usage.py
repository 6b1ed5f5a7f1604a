"""What NVML says of the processes on GPUs, with a fake in its place."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tfring.runtime.gpu import usage
from tfring.runtime.gpu.usage import GpuUse, gpu_use


class NVMLError(Exception):
    """What the package raises."""


class Nvml:
    """Two GPUs: process 7 is on both, process 8 on the second one, whose memory is not known."""

    NVMLError = NVMLError

    def __init__(self, broken: str = "") -> None:
        self._broken = broken
        self._gpus = [(30, [(7, 1000)]), (90, [(7, 500), (8, None)])]

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any) -> Any:
            if name == self._broken:
                raise NVMLError(name)
            return {
                "nvmlInit": lambda: None,
                "nvmlDeviceGetCount": lambda: 2,
                "nvmlDeviceGetHandleByIndex": lambda index: self._gpus[index],
                "nvmlDeviceGetUtilizationRates": lambda gpu: SimpleNamespace(gpu=gpu[0]),
                "nvmlDeviceGetComputeRunningProcesses": lambda gpu: [
                    SimpleNamespace(pid=pid, usedGpuMemory=memory) for pid, memory in gpu[1]
                ],
            }[name](*given)

        return call


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """NVML is looked for anew."""
    usage.nvml.cache_clear()
    yield
    usage.nvml.cache_clear()


def test_memory_adds_up_and_the_busiest_gpu_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())
    assert gpu_use() == {7: GpuUse(90.0, 1500), 8: GpuUse(90.0, 0)}


@pytest.mark.parametrize(
    "module",
    [None, Nvml("nvmlInit"), Nvml("nvmlDeviceGetCount")],
    ids=["no package", "no driver", "lost"],
)
def test_without_nvml_nothing_is_known(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", module)
    assert gpu_use() == {}


def test_memory_is_known_also_where_the_use_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml("nvmlDeviceGetUtilizationRates"))
    assert gpu_use() == {7: GpuUse(-1.0, 1500), 8: GpuUse(-1.0, 0)}
