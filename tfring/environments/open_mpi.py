"""Processes started by Open MPI's mpirun."""

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

_SOURCE = "Open MPI"
_NAMES = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")


def detect(environ: Mapping[str, str]) -> Identity | None:
    """The identity that Open MPI's mpirun gave us, or None if it did not start this process."""
    if not any(environ.get(name) for name in _NAMES):
        return None
    require_all(environ, _NAMES, _SOURCE)
    rank = read_int(environ, "OMPI_COMM_WORLD_RANK")
    size = read_int(environ, "OMPI_COMM_WORLD_SIZE", low=1)
    check_rank(_SOURCE, rank, size)
    return Identity(
        source=_SOURCE,
        rank=rank,
        size=size,
        meeting=Meeting.MPI if size > 1 else Meeting.ALONE,
        local_rank=read_optional_int(environ, "OMPI_COMM_WORLD_LOCAL_RANK"),
        local_size=read_optional_int(environ, "OMPI_COMM_WORLD_LOCAL_SIZE", low=1),
    )
