"""Horovod's questions about what was built; for the most part the answer is no."""

from __future__ import annotations

import importlib.util

from tfring.bootstrap import mpi_exchange


def mpi_built() -> bool:
    """Whether jobs can be started under mpirun: whether mpi4py is installed."""
    return importlib.util.find_spec("mpi4py") is not None


def mpi_threads_supported() -> bool:
    """Whether MPI is in use and allows calls from several threads at once."""
    return mpi_exchange.threads_supported()


def gloo_enabled() -> bool:
    """False: tfring has its own transports instead of Gloo."""
    return False


def gloo_built() -> bool:
    """False: tfring has its own transports instead of Gloo."""
    return False


def nccl_built() -> int:
    """The version of NCCL that collectives can use; 0, because this release has no NCCL backend."""
    return 0


def cuda_built() -> bool:
    """False: this release reduces in host memory."""
    return False


def rocm_built() -> bool:
    """False: this release reduces in host memory."""
    return False


def ccl_built() -> bool:
    """False: there is no oneCCL backend."""
    return False


def ddl_built() -> bool:
    """False: there is no DDL backend."""
    return False
