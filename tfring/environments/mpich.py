"""Processes started by the mpiexec of MPICH, Intel MPI or MVAPICH, or by srun with PMI."""

from __future__ import annotations

from collections.abc import Mapping

from tfring.environments.identity import (
    Identity,
    Meeting,
    check_rank,
    read_int,
    read_optional_int,
    require_all,
)

_SOURCE = "MPICH"
_NAMES = ("PMI_RANK", "PMI_SIZE")


def detect(environ: Mapping[str, str]) -> Identity | None:
    """The identity that a PMI process manager gave us, or None if there was none."""
    if not any(environ.get(name) for name in _NAMES):
        return None
    require_all(environ, _NAMES, _SOURCE)
    rank = read_int(environ, "PMI_RANK")
    size = read_int(environ, "PMI_SIZE", low=1)
    check_rank(_SOURCE, rank, size)
    return Identity(
        source=_SOURCE,
        rank=rank,
        size=size,
        meeting=Meeting.MPI if size > 1 else Meeting.ALONE,
        local_rank=read_optional_int(environ, "MPI_LOCALRANKID"),
        local_size=read_optional_int(environ, "MPI_LOCALNRANKS", low=1),
    )
