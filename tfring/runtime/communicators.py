"""What is asked of init's `comm`: communicators and groups of mpi4py, which this never loads."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any


def is_communicator(value: Any) -> bool:
    """Whether a value is an mpi4py communicator. Does not load mpi4py."""
    module = sys.modules.get("mpi4py.MPI")
    return module is not None and isinstance(value, module.Comm)


def is_null(comm: Any) -> bool:
    """Whether a communicator is COMM_NULL, that is, this process is not in it."""
    return bool(comm == sys.modules["mpi4py.MPI"].COMM_NULL)


def checked_ranks(comm: Sequence[Any], size: int, rank: int) -> list[int]:
    """Returns the ranks of a job as whole numbers.

    ValueError: one is not a rank or is named twice, or our own is missing.
    """
    try:
        ranks = [int(r.__index__()) for r in comm]
    except AttributeError:
        raise ValueError(
            f"init(comm={list(comm)!r}): a list has to hold ranks only, or communicators only"
        ) from None
    for position, other in enumerate(ranks):
        if not 0 <= other < size:
            raise ValueError(
                f"init(comm={ranks}) names rank {other}, but ranks go from 0 to {size - 1}"
            )
        if other in ranks[:position]:
            raise ValueError(f"init(comm={ranks}) names rank {other} twice")
    if rank not in ranks:
        raise ValueError(
            f"this process is rank {rank} of {size}, which is not among the ranks {ranks} given to "
            "init(comm=...): only those may call it"
        )
    return ranks


def spans_world(comm: Any) -> bool:
    """Whether a communicator has all processes of COMM_WORLD, in any order."""
    mpi = sys.modules["mpi4py.MPI"]
    if is_null(comm) or comm.Is_inter():
        return False
    order = mpi.Comm.Compare(comm, mpi.COMM_WORLD)
    return order in (mpi.IDENT, mpi.CONGRUENT, mpi.SIMILAR)


def ranks_in(group: Any, comm: Any) -> list[int]:
    """Returns the ranks that the processes of a communicator have in a group, ascending.

    Raises:
        ValueError: One of them is not in the group, or the communicator joins two groups.
    """
    mpi = sys.modules["mpi4py.MPI"]
    if comm.Is_inter():
        raise ValueError(
            "a process set cannot be made of an intercommunicator: take the result of its Merge()"
        )
    members = comm.Get_group()
    ranks = mpi.Group.Translate_ranks(members, list(range(members.size)), group)
    members.Free()
    outside = [place for place, rank in enumerate(ranks) if rank == mpi.UNDEFINED]
    if outside:
        raise ValueError(
            f"rank {outside[0]} of the communicator of a process set is not part of the job that "
            "init(comm=...) made: take the communicator from the job's own"
        )
    return sorted(ranks)


def free_group(group: Any) -> None:
    """Frees a group that MpiExchange.group returned, unless MPI is finalised already."""
    module = sys.modules.get("mpi4py.MPI")
    if module is not None and not module.Is_finalized():
        group.Free()
