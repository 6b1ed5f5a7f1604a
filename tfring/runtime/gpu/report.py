"""What `tfring doctor` says about GPUs and NCCL.

To be run in a process of its own: a broken driver or library may crash or hang.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from typing import Any

from tfring.runtime import _native
from tfring.runtime.gpu import nccl
from tfring.runtime.gpu.driver import DEFAULT_DRIVER, Driver, DriverError, Gpu
from tfring.runtime.gpu.toolkit import find_toolkit
from tfring.runtime.gpu.usage import nvml


def gpu_report(runtime: Mapping[str, str]) -> dict[str, list[Any]]:
    """Looks at the driver, the GPUs and NCCL.

    Args:
        runtime: The runtime's settings that are set, by name without prefix.

    Returns:
        "lines": pairs of a name and a text; "problems": what is wrong, and what to do about it.
    """
    lines: list[tuple[str, str]] = []
    problems: list[str] = []
    gpus: list[Gpu] = []
    try:
        driver = Driver(runtime.get("CUDA_DRIVER") or DEFAULT_DRIVER)
        lines.append(("CUDA driver", f"for CUDA {driver.version()}"))
        gpus = driver.gpus()
    except DriverError as error:
        lines.append(("CUDA driver", f"none: {error}"))
    wanted = runtime.get("GPU_OPERATIONS", "auto")
    if not gpus:
        lines.append(("GPUs", "none"))
        if wanted == "nccl":
            problems.append("TFRING_GPU_OPERATIONS is nccl, and there is no GPU here")
        return {"lines": lines, "problems": problems}
    users = _users()
    for gpu in gpus:
        lines.append((f"GPU {gpu.number}", _describe(gpu, users)))
    found = nccl.find_nccl(runtime)
    lines.append(("NCCL", found.text))
    if found.trouble and wanted == "nccl":
        problems.append(f"TFRING_GPU_OPERATIONS is nccl: {found.trouble}")
    own = _own_code_trouble()
    path = f"an error: {own}" if own else _path_text(wanted, found)
    lines.append(("tensors on GPUs", path))
    if own:
        problems.append(
            f"tfring's code for GPUs cannot be loaded ({own}), so collectives of tensors in GPU "
            "memory fail: install a tfring that has it, or hide the GPUs with CUDA_VISIBLE_DEVICES="
        )
    tools = find_toolkit(os.environ)
    lines += [(f"XLA: {name}", path or "none") for name, path in tools.items()]
    missing = [name for name, path in tools.items() if not path]
    if missing:
        problems.append(
            f"jit_compile=True fails on GPUs, which is Keras's default there: XLA finds no "
            f"{' and no '.join(missing)}. Install nvidia-cuda-nvcc-cu12, or name the folder "
            "of a CUDA toolkit: XLA_FLAGS=--xla_gpu_cuda_data_dir=/path/of/cuda"
        )
    return {"lines": lines, "problems": problems}


def _own_code_trouble() -> str:
    """Returns why libtfring_cuda.so cannot be loaded; "" if it can."""
    try:
        ctypes.CDLL(str(_native.library_dir() / "libtfring_cuda.so"))
    except OSError as error:
        return str(error)
    return ""


def _path_text(wanted: str, found: nccl.Found) -> str:
    if wanted not in ("auto", "nccl"):
        return f"copied through CPU memory (TFRING_GPU_OPERATIONS is {wanted})"
    if found.trouble:
        return "an error, without NCCL" if wanted == "nccl" else "copied through CPU memory"
    return "NCCL where all ranks can use it, else copied through CPU memory"


def _describe(gpu: Gpu, users: Mapping[str, list[str]] | None) -> str:
    major, minor = gpu.capability
    if users is None:
        used = "who uses it is not known (pip install nvidia-ml-py)"
    else:
        used = f"used by {', '.join(users.get(gpu.uuid, [])) or 'nobody'}"
    return f"{gpu.name}, {gpu.memory / 2**30:.0f} GiB, sm_{major}{minor}, {gpu.uuid}; {used}"


def _users() -> dict[str, list[str]] | None:
    """Returns the processes that use each GPU, by its UUID; None if that cannot be found out."""
    library = nvml()
    if library is None:
        return None
    users = {}
    try:
        for index in range(library.nvmlDeviceGetCount()):
            device = library.nvmlDeviceGetHandleByIndex(index)
            running = library.nvmlDeviceGetComputeRunningProcesses(device)
            users[str(library.nvmlDeviceGetUUID(device))] = [f"process {p.pid}" for p in running]
    except library.NVMLError:
        return None
    return users
