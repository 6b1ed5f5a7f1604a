"""Process sets: groups of ranks that run collectives together, beside the global set of all ranks.

Sets may overlap, and any of them may be in flight at the same time. Adding and removing one is a
collective over all ranks of the job, in the same order on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfring import world
from tfring.world import is_initialized, rank, size


class ProcessSet:
    """A group of ranks that run collectives together.

    It can be used once it is registered: by init(process_sets=[...]) or add_process_set.

    Attributes:
        process_set_id: The number that collectives use; None while it is not registered.
        ranks: Its ranks in order; those of the global set are known after init.
        mpi_comm: Always None: process sets are not made from MPI communicators.
    """

    process_set_id: int | None = None
    mpi_comm: Any = None

    def __init__(self, ranks_or_comm: Any = None) -> None:
        """Names the ranks of a set.

        Args:
            ranks_or_comm: The ranks; an empty sequence or None stands for all.

        Raises:
            NotImplementedError: It is an MPI communicator.
        """
        if ranks_or_comm is not None and not hasattr(ranks_or_comm, "__iter__"):
            raise NotImplementedError(
                "process sets cannot be made from MPI communicators yet: pass a list of ranks"
            )
        self._ranks = sorted({int(r) for r in ranks_or_comm or ()})

    @property
    def ranks(self) -> list[int]:
        """Its ranks in order. For the global set an error before init."""
        return list(self._ranks) if self._ranks else list(range(size()))

    def size(self) -> int:
        """The number of its ranks."""
        return len(self.ranks)

    def rank(self) -> int:
        """Our rank within the set, or -1 if we are not part of it."""
        return self.ranks.index(rank()) if self.included() else -1

    def included(self) -> bool:
        """Whether we are part of it."""
        return rank() in self.ranks

    def __str__(self) -> str:
        ranks = self.ranks if self._ranks or is_initialized() else "all"
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, ranks={ranks}, "
            f"mpi_comm={self.mpi_comm})"
        )


global_process_set = ProcessSet()
global_process_set.process_set_id = 0


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Registers a process set; every rank of the job makes the same call.

    Args:
        process_set: the set, or its ranks.

    Returns:
        The set, whose `process_set_id` is now the same number on all ranks.

    Raises:
        ValueError: a set of these ranks is registered already, or a rank does not exist.
        tf.errors.FailedPreconditionError: ranks disagree about the members.
    """
    from tfring.exceptions import tf_errors

    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    with tf_errors():
        process_set.process_set_id = world._core().add_process_set(process_set.ranks)
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Forgets a registered set; every rank of the job makes the same call.

    Returns:
        False for the global process set, and for one that is not registered.
    """
    from tfring.exceptions import tf_errors

    if not process_set.process_set_id:
        return False
    with tf_errors():
        world._core().remove_process_set(process_set.process_set_id)
    process_set.process_set_id = None
    return True


def checked_id(process_set: Any) -> int:
    """Returns the number that collectives use; None stands for the global process set.

    Raises:
        ValueError: it is not registered.
    """
    if process_set is None:
        return 0
    number = getattr(process_set, "process_set_id", None)
    if number is None:
        raise ValueError(
            f"{process_set} is not registered: pass it to init(process_sets=[...]) or to "
            "add_process_set on every rank before its use"
        )
    return int(number)
