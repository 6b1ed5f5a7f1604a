"""ProcessSet: the object by which users name a group of ranks, and the global one of all ranks."""

from __future__ import annotations

import itertools
import operator
import threading
from typing import Any

from tfring.runtime import communicators
from tfring.runtime.topology import is_initialized, rank, size


def _checked_ranks(ranks: Any) -> list[int]:
    if not hasattr(ranks, "__iter__") or isinstance(ranks, str):
        raise ValueError(
            f"a process set is made of a list of ranks or of an mpi4py communicator, not {ranks!r}"
        )
    try:
        numbers = sorted(operator.index(r) for r in ranks)
    except TypeError as error:
        raise ValueError(f"a process set is made of ranks, whole numbers: {error}") from None
    if not numbers:
        raise ValueError("a process set needs at least one rank")
    if numbers[0] < 0:
        raise ValueError(f"a process set names rank {numbers[0]}, and ranks begin at 0")
    for one, next_one in itertools.pairwise(numbers):
        if one == next_one:
            raise ValueError(f"a process set names rank {one} twice")
    return numbers


class ProcessSet:
    """A group of ranks that run collectives together.

    It can be used once it is registered: by init(process_sets=[...]) or add_process_set. Two sets
    are equal if they were made of the same ranks, or of the same communicator. Any thread may use
    it; only `registry` beside it, with its lock held, changes whether it is registered.

    Attributes:
        process_set_id: The id that collectives use; None while it is not registered.
        mpi_comm: The mpi4py communicator that it was made from, or None. COMM_NULL on ranks that
            are not part of it.
        barrier_lock: Held by the thread that is in a barrier of the set.
    """

    process_set_id: int | None = None

    def __init__(self, ranks_or_comm: Any) -> None:
        """Names the ranks of a set.

        Args:
            ranks_or_comm: Ranks of the job in any order (a list, a range, ...), or an mpi4py
                communicator of processes of the job.

        Raises:
            ValueError: There is no rank, one is named twice, is negative or no whole number.
        """
        self.mpi_comm: Any = None
        self._ranks: list[int] | None = None
        # Why it is not registered, if there is more to say than that nobody has registered it.
        self._why = ""
        self.barrier_lock = threading.Lock()
        if communicators.is_communicator(ranks_or_comm):
            self.mpi_comm = ranks_or_comm
        else:
            self._ranks = _checked_ranks(ranks_or_comm)

    @property
    def ranks(self) -> list[int] | None:
        """Its ranks in ascending order; None for a communicator's until it is registered."""
        return None if self._ranks is None else list(self._ranks)

    def size(self) -> int:
        """The number of its ranks."""
        return len(self._members())

    def rank(self) -> int:
        """Our rank within the set, or -1 if we are not part of it. An error before init."""
        members = self._members()
        return members.index(rank()) if rank() in members else -1

    def included(self) -> bool:
        """Whether we are part of it. An error before init."""
        return rank() in self._members()

    def _members(self) -> list[int]:
        ranks = self.ranks
        if ranks is None:
            raise ValueError(
                f"the ranks of {self} are known when it is registered: {self._advice()}"
            )
        return ranks

    def _advice(self) -> str:
        return self._why or (
            "pass it to init(process_sets=[...]) or to add_process_set on every rank before its use"
        )

    def __str__(self) -> str:
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, ranks={self._shown()}, "
            f"mpi_comm={self.mpi_comm})"
        )

    __repr__ = __str__

    def _shown(self) -> Any:
        return self.ranks

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ProcessSet) or type(self) is not type(other):
            return NotImplemented
        if self.mpi_comm is not None or other.mpi_comm is not None:
            return bool(self.mpi_comm == other.mpi_comm)
        return self._ranks == other._ranks

    def __hash__(self) -> int:
        # A communicator's ranks become known later, and the hash must not change.
        return hash((type(self), None if self.mpi_comm is not None else tuple(self._ranks or ())))


class _GlobalProcessSet(ProcessSet):
    """All ranks of the job, whatever job that is. There is one instance."""

    process_set_id: int | None = 0

    def __init__(self) -> None:
        super().__init__([0])
        self._ranks = None

    @property
    def ranks(self) -> list[int] | None:
        """All ranks. An error before init."""
        return list(range(size()))

    def _shown(self) -> Any:
        return self.ranks if is_initialized() else "all"


global_process_set: ProcessSet = _GlobalProcessSet()


def checked_id(process_set: Any) -> int:
    """Returns the id of a process set; None means the global one.

    Raises:
        ValueError: It is not registered, or is no ProcessSet.
    """
    if process_set is None:
        return 0
    if not isinstance(process_set, ProcessSet):
        raise ValueError(f"process_set has to be a ProcessSet, not {process_set!r}")
    set_id = process_set.process_set_id
    if set_id is None:
        raise ValueError(f"{process_set} is not registered: {process_set._advice()}")
    return int(set_id)
