"""Processes started by an MPI launcher: mpirun, mpiexec, or srun with PMI."""

from __future__ import annotations

from collections.abc import Mapping

from tfring.job.environments.identity import (
    Identity,
    Rendezvous,
    read_optional_int,
    read_rank_and_size,
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
    return None
