"""Processes started by a PMIx launcher that sets nothing else (prterun, srun --mpi=pmix)."""

from __future__ import annotations

from collections.abc import Mapping

from tfring.job.environments.identity import (
    Identity,
    Rendezvous,
    check_rank,
    read_int,
    read_optional_int,
    require_all,
)

_SOURCE = "PMIx"


def detect(environ: Mapping[str, str]) -> Identity | None:
    """Returns the identity that a PMIx server set, or None if there is no such server.

    No PMIx variable has the number of ranks: Slurm has one for its step, elsewhere MPI knows it.
    """
    if not environ.get("PMIX_RANK"):
        return None
    require_all(environ, ("PMIX_RANK", "PMIX_NAMESPACE"), _SOURCE)
    rank = read_int(environ, "PMIX_RANK")
    size = read_optional_int(environ, "SLURM_STEP_NUM_TASKS", low=1)
    check_rank(_SOURCE, rank, size)
    return Identity(
        source=_SOURCE,
        rank=rank,
        size=size,
        rendezvous=Rendezvous.MPI,
        local_rank=read_optional_int(environ, "SLURM_LOCALID") if size else None,
    )
