"""Who am I: one small file per environment, asked in a fixed order.

Variables decide; MPI is never loaded just to find out, because outside of mpirun that starts an
MPI of its own and takes a second.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from tfring.environments import (
    launched,
    mpich,
    open_mpi,
    pmix,
    single,
    slurm,
    tf_config,
    torchrun,
)
from tfring.environments.identity import Identity, IdentityError, Meeting

__all__ = ["Identity", "IdentityError", "Meeting", "find_identity"]

# The first that recognises itself wins.
_ENVIRONMENTS: tuple[Any, ...] = (
    launched,
    torchrun,
    open_mpi,
    mpich,
    pmix,
    slurm,
    tf_config,
    single,
)


def find_identity(environ: Mapping[str, str], *, have_mpi4py: bool | None = None) -> Identity:
    """Finds out which rank of which job this process is.

    Args:
        environ: The variables, usually ``os.environ``.
        have_mpi4py: Whether mpi4py is installed; None looks for it without importing it.

    Returns:
        The identity according to the first environment that recognises itself.

    Raises:
        IdentityError: A set of variables is half present or impossible, or the processes were
            started by MPI and mpi4py is not installed.
    """
    if have_mpi4py is None:
        have_mpi4py = importlib.util.find_spec("mpi4py") is not None
    by_mpi: Identity | None = None
    for environment in _ENVIRONMENTS:
        identity: Identity | None = environment.detect(environ)
        if identity is None or (by_mpi is not None and environment is single):
            continue
        if identity.meeting is Meeting.MPI and not have_mpi4py:
            # srun announces its PMI to every task, MPI or not: the step may do.
            by_mpi = by_mpi or identity
            continue
        return identity
    assert by_mpi is not None
    raise IdentityError(
        f"this process is rank {by_mpi.rank} of a job started by {by_mpi.source}, but mpi4py, "
        "which tfring uses to find the other ranks there, is not installed: "
        "`pip install mpi4py`, or start the job with `tfring run -np N` instead of mpirun"
    )
