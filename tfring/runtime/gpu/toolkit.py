"""What XLA needs to compile for GPUs.

It runs `ptxas`, and reads `libdevice.10.bc` for sines and the like. TensorFlow has neither; CUDA's
toolkit and the package nvidia-cuda-nvcc-cu12 have both.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

PTXAS = "bin/ptxas"
LIBDEVICE = "nvvm/libdevice/libdevice.10.bc"
_FLAG = "--xla_gpu_cuda_data_dir="
_SYSTEM = "/usr/local/cuda"


def find_toolkit(environ: Mapping[str, str]) -> dict[str, str]:
    """Looks where XLA looks.

    Args:
        environ: The environment: XLA_FLAGS may name a folder, and PATH may have ptxas.

    Returns:
        "ptxas" and "libdevice": their paths, "" for what is not there.
    """
    folders = [Path(folder) for folder in (*_named(environ), _SYSTEM, *_of_package())]
    found = {
        name: next((str(folder / file) for folder in folders if (folder / file).is_file()), "")
        for name, file in (("ptxas", PTXAS), ("libdevice", LIBDEVICE))
    }
    found["ptxas"] = shutil.which("ptxas", path=environ.get("PATH", "")) or found["ptxas"]
    return found


def _named(environ: Mapping[str, str]) -> list[str]:
    flags = environ.get("XLA_FLAGS", "").split()
    return [flag.removeprefix(_FLAG) for flag in flags if flag.startswith(_FLAG)]


def _of_package() -> list[str]:
    """XLA looks beside the folder of TensorFlow, where pip puts the package."""
    try:
        spec = importlib.util.find_spec("tensorflow")
    except (ImportError, ValueError):
        return []
    if spec is None or spec.origin is None:
        return []
    return [os.path.join(os.path.dirname(os.path.dirname(spec.origin)), "nvidia/cuda_nvcc")]
