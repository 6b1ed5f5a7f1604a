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


def find_identity(
    environ: Mapping[str, str], *, have_mpi4py: bool | None = None, meeting: str | None = None
) -> Identity:
    """Finds out which rank of which job this process is, from the first environment that is set.

    It looks for mpi4py without importing it, unless `have_mpi4py` says whether that is installed.
    `meeting` is TFRING_X_MEETING: "mpi", "rendezvous" or None.

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
        if identity.rendezvous is Rendezvous.MPI and (not have_mpi4py or meeting == "rendezvous"):
            # srun sets PMI variables for programs without MPI as well: the Slurm step is enough.
            under_mpi = identity
            continue
        if identity.rendezvous is Rendezvous.MPI and meeting != "mpi":
            return dataclasses.replace(identity, fallback=_in_slurm(identity, environ))
        return identity
    if under_mpi is None:
        return Identity(ALONE, rank=0, size=1, rendezvous=Rendezvous.NONE)
    if meeting == "rendezvous":
        return _over_tcp(under_mpi, environ)
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


def _over_tcp(under_mpi: Identity, environ: Mapping[str, str]) -> Identity:
    """Returns an identity that MPI's variables give, whose ranks meet at an address given.

    IdentityError: no address was given, or the number of ranks is not known.
    """
    address = environ.get("TFRING_RENDEZVOUS_ADDR")
    if not address or not environ.get("TFRING_RENDEZVOUS_PORT") or under_mpi.size is None:
        raise IdentityError(
            f"TFRING_X_MEETING=rendezvous, and {under_mpi.source} does not say where rank 0 runs: "
            "set TFRING_RENDEZVOUS_ADDR and TFRING_RENDEZVOUS_PORT for all ranks"
        )
    local_size, size = under_mpi.local_size, under_mpi.size
    return dataclasses.replace(
        under_mpi,
        rendezvous=Rendezvous.TCP,
        address=address,
        port=int(environ["TFRING_RENDEZVOUS_PORT"]),
        several_hosts=None if local_size is None else local_size < size,
        public_seed=f"{under_mpi.source} {address} {environ['TFRING_RENDEZVOUS_PORT']}",
    )
