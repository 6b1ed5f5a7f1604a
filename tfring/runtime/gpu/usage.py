"""How busy GPUs are and whose memory they hold, as NVML says."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple


class GpuUse(NamedTuple):
    """What a process uses of GPUs.

    Attributes:
        percent: Of the time in which its busiest GPU computed, for whomever; -1: unknown, as in
            a part of a GPU (MIG).
        memory: Bytes, on all GPUs.
    """

    percent: float
    memory: int


def gpu_use() -> dict[int, GpuUse]:
    """Returns what each process of this host uses, by process id; of those that NVML tells of.

    There are none without NVIDIA's driver, or without the package nvidia-ml-py. A container that
    cannot see the host's process ids gets none, or those of the host.
    """
    library = nvml()
    found: dict[int, GpuUse] = {}
    if library is None:
        return found
    try:
        for index in range(library.nvmlDeviceGetCount()):
            device = library.nvmlDeviceGetHandleByIndex(index)
            percent = _busy(library, device)
            for process in library.nvmlDeviceGetComputeRunningProcesses(device):
                before = found.get(process.pid, GpuUse(-1.0, 0))
                memory = before.memory + (process.usedGpuMemory or 0)
                found[process.pid] = GpuUse(max(before.percent, percent), memory)
    except library.NVMLError:
        return {}
    return found


def _busy(library: Any, device: Any) -> float:
    try:
        return float(library.nvmlDeviceGetUtilizationRates(device).gpu)
    except library.NVMLError:
        return -1.0


@functools.cache
def nvml() -> Any:
    """Returns the package, ready for use; None: there is none, or no driver."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml
