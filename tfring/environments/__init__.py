"""Finds out which rank of which job this process is: one small file per kind of launcher.

Only variables decide. MPI is not loaded for it, because outside of mpirun that starts an MPI job of
one process and takes a second.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from tfring.environments import mpi, pmix, single, slurm, tf_config, tfring_run, torchrun
from tfring.environments.identity import Identity, IdentityError, Rendezvous

__all__ = ["Identity", "IdentityError", "Rendezvous", "find_identity"]

# In this order; the first whose detect() returns an identity decides.
_ENVIRONMENTS: tuple[Any, ...] = (tfring_run, torchrun, mpi, pmix, slurm, tf_config, single)


def find_identity(environ: Mapping[str, str], *, have_mpi4py: bool | None = None) -> Identity:
    """Finds out which rank of which job this process is.

    Args:
        environ: The variables, usually ``os.environ``.
        have_mpi4py: Whether mpi4py is installed; None looks for it without importing it.

    Returns:
        The identity from the first environment that has its variables set.

    Raises:
        IdentityError: An environment has set only some of its variables, or impossible values; or
            MPI started the processes and mpi4py is not installed.
    """
    if have_mpi4py is None:
        have_mpi4py = importlib.util.find_spec("mpi4py") is not None
    under_mpi: Identity | None = None
    for environment in _ENVIRONMENTS:
        identity: Identity | None = environment.detect(environ)
        if identity is None or (under_mpi is not None and environment is single):
            continue
        if identity.rendezvous is Rendezvous.MPI and not have_mpi4py:
            # srun sets PMI variables for programs without MPI as well: the Slurm step is enough.
            under_mpi = under_mpi or identity
            continue
        return identity
    assert under_mpi is not None
    raise IdentityError(
        f"this process is rank {under_mpi.rank} of a job started by {under_mpi.source}, but "
        "mpi4py, which tfring uses to find the other ranks there, is not installed: "
        "`pip install mpi4py`, or start the job with `tfring run -np N` instead of mpirun"
    )
