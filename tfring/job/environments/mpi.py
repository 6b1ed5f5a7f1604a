"""Processes started by an MPI launcher: mpirun, mpiexec, prterun, or srun with PMI or PMIx."""

from __future__ import annotations

from collections.abc import Mapping

from tfring.job.environments.identity import (
    Identity,
    Rendezvous,
    check_rank,
    read_int,
    read_optional_int,
    read_rank_and_size,
    require_all,
)

# Name of the launcher; the variables with rank, size, local rank and local size.
_LAUNCHERS = (
    (
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    # Also Intel MPI, MVAPICH, and srun with PMI.
    ("MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


def detect(environ: Mapping[str, str]) -> Identity | None:
    """Returns the identity that an MPI launcher set, or None if none started this process."""
    for source, rank_name, size_name, local_rank_name, local_size_name in _LAUNCHERS:
        if not environ.get(rank_name) and not environ.get(size_name):
            continue
        rank, size = read_rank_and_size(environ, source, (rank_name, size_name))
        return Identity(
            source=source,
            rank=rank,
            size=size,
            rendezvous=Rendezvous.MPI if size > 1 else Rendezvous.NONE,
            local_rank=read_optional_int(environ, local_rank_name),
            local_size=read_optional_int(environ, local_size_name, low=1),
        )
    return _by_pmix(environ) if environ.get("PMIX_RANK") else None


def _by_pmix(environ: Mapping[str, str]) -> Identity:
    """Returns the identity that a PMIx launcher set, which sets nothing else.

    No PMIx variable has the number of ranks: Slurm has one for its step, elsewhere MPI knows it.
    """
    source = "PMIx"
    require_all(environ, ("PMIX_RANK", "PMIX_NAMESPACE"), source)
    rank = read_int(environ, "PMIX_RANK")
    size = read_optional_int(environ, "SLURM_STEP_NUM_TASKS", low=1)
    check_rank(source, rank, size)
    return Identity(
        source=source,
        rank=rank,
        size=size,
        rendezvous=Rendezvous.MPI,
        local_rank=read_optional_int(environ, "SLURM_LOCALID") if size else None,
    )
