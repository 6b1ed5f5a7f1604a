"""Horovod's queries about backends that tfring does not have."""

from __future__ import annotations

from tfring.integration import threads_supported


def mpi_threads_supported() -> bool:
    """Whether MPI is in use and allows calls from several threads at once."""
    return threads_supported()


def gloo_enabled() -> bool:
    """False: tfring has its own transports instead of Gloo."""
    return False


def gloo_built() -> bool:
    """False: tfring has its own transports instead of Gloo."""
    return False


def rocm_built() -> bool:
    """False: there is no ROCm backend."""
    return False


def ccl_built() -> bool:
    """False: there is no oneCCL backend."""
    return False


def ddl_built() -> bool:
    """False: there is no DDL backend."""
    return False
