"""Finds out which rank of which job this process is.

Only variables decide. MPI is not loaded for it, because outside of mpirun that starts an MPI job of
one process and takes a second.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Mapping

from tfring.job.environments import kubernetes, launchers, slurm, tf_config
from tfring.job.environments.given import Given
from tfring.job.environments.identity import Identity, IdentityError, Rendezvous

__all__ = ["ALONE", "Given", "Identity", "IdentityError", "Rendezvous", "find_identity"]

# In this order; the first that returns an identity decides.
_DETECT: tuple[Callable[[Mapping[str, str]], Identity | None], ...] = (
    launchers.of_tfring_run,
    launchers.of_torchrun,
    launchers.of_mpi,
    slurm.detect,
    kubernetes.detect,
    tf_config.detect,
)

# The source of a process that no launcher has started.
ALONE = "a single process"


def find_identity(environ: Mapping[str, str], *, have_mpi4py: bool | None = None) -> Identity:
    """Finds out which rank of which job this process is, from the first environment that is set.

    It looks for mpi4py without importing it, unless `have_mpi4py` says whether that is installed.

    IdentityError: an environment has set only some of its variables, or impossible values; or MPI
    started the processes and mpi4py is not installed.
    """
    if have_mpi4py is None:
        have_mpi4py = importlib.util.find_spec("mpi4py") is not None
    under_mpi: Identity | None = None
    for detect in _DETECT:
        identity = detect(environ)
        if identity is None:
            continue
        if identity.rendezvous is not Rendezvous.MPI:
            return identity
        if have_mpi4py:
            return dataclasses.replace(identity, fallback=_in_slurm(identity, environ))
        # srun sets PMI variables for programs without MPI as well: the Slurm step is enough.
        under_mpi = identity
    if under_mpi is None:
        return Identity(ALONE, rank=0, size=1, rendezvous=Rendezvous.NONE)
    raise IdentityError(
        f"this process is rank {under_mpi.rank} of a job started by {under_mpi.source}, but "
        "mpi4py, which tfring uses to find the other ranks there, is not installed: "
        "`pip install mpi4py`, or start the job with `tfring run -np N` instead of mpirun"
    )


def _in_slurm(under_mpi: Identity, environ: Mapping[str, str]) -> Identity | None:
    """Returns the identity in the Slurm step if it is the same rank.

    The variables of a step can also be those of a daemon that mpirun started on this node.
    """
    try:
        found = slurm.detect(environ)
    except IdentityError:
        return None
    if found is None or found.rank != under_mpi.rank or under_mpi.size not in (None, found.size):
        return None
    return found
