"""What collectives and launchers can use here: MPI, CUDA, NCCL."""

from __future__ import annotations

import importlib.util
import os

from tfring.runtime import _native
from tfring.runtime.gpu.nccl import find_nccl
from tfring.runtime.settings.environment import read_settings


def mpi_built() -> bool:
    """Whether jobs can be started under mpirun: whether mpi4py is installed."""
    return importlib.util.find_spec("mpi4py") is not None


def cuda_built() -> bool:
    """Whether collectives take tensors in GPU memory: so does every build that has the ops."""
    return any(_native.library_dir().glob("**/_tfring_ops.so"))


def nccl_built() -> int:
    """The version of NCCL that collectives can use, 22707 for 2.27.7; 0 if there is none."""
    return find_nccl(read_settings(os.environ).runtime).version if cuda_built() else 0
