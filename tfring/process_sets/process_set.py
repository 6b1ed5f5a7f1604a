"""Process sets: groups of ranks that run collectives together, beside the global set of all ranks.

Sets may overlap, and any of them may be in flight at the same time. Adding and removing one is a
collective over all ranks of the job.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import operator
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from tfring import world
from tfring.bootstrap import mpi_exchange
from tfring.process_sets import agreement
from tfring.process_sets.agreement import Passed
from tfring.world import is_initialized, rank, size

_INVALID_ARGUMENT = 3


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
    are equal if they were made of the same ranks, or of the same communicator.

    Attributes:
        process_set_id: The number that collectives use; None while it is not registered.
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
        # Read by collectives on any thread; written while nobody can use the set.
        self._why = ""
        # COMM_NULL here, while others have several sets in its place.
        self._stands_for_several = False
        self.barrier_lock = threading.Lock()
        if mpi_exchange.is_communicator(ranks_or_comm):
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

    def takes_part_in_removal(self) -> bool:
        """Whether it is registered, or stands for sets of other ranks."""
        return self.process_set_id is not None or self._stands_for_several

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

# Guards _registered, _generation and the process_set_id and _why of every set.
_lock = threading.Lock()
_registered: dict[int, ProcessSet] = {}
_stand_ins: list[ProcessSet] = []  # COMM_NULL here, and several sets elsewhere
_generation = 0
# Held while a set is added, or one is removed: ranks meet for both under one name, so that they
# are told when they disagree.
_adding = threading.Lock()
_removing = threading.Lock()
_exchanges = itertools.count()


@contextlib.contextmanager
def _argument_errors() -> Iterator[None]:
    """A CoreError about arguments leaves as ValueError, any other as the tf.errors exception."""
    from tfring.exceptions import CoreError, tf_errors

    with tf_errors():
        try:
            yield
        except CoreError as error:
            if getattr(error, "code", None) != _INVALID_ARGUMENT:
                raise
            raise ValueError(getattr(error, "message", str(error))) from error


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Registers a process set; every rank of the job makes the same call.

    With sets made from communicators different ranks may pass different ones, as after
    MPI_Comm_split: all of them are registered. Threads may add sets at the same time if the calls
    come in the same order on every rank.

    Args:
        process_set: The set, or its ranks, or a communicator.

    Returns:
        The set, whose `process_set_id` is now the same number on all its ranks.

    Raises:
        ValueError: A set of these ranks is registered already, or a rank does not exist.
        tf.errors.FailedPreconditionError: tfring is not initialized, or ranks disagree about the
            members.
        tf.errors.UnavailableError: A rank was lost meanwhile.
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    if process_set is global_process_set:
        raise ValueError("the global process set is registered already")
    generation = _generation
    if process_set.mpi_comm is not None:
        _add_agreed([process_set], generation)
    else:
        assert process_set._ranks is not None
        _note(process_set, _add_ranks(process_set._ranks), generation)
    return process_set


def _add_ranks(ranks: list[int]) -> int:
    with _adding, _argument_errors():
        return int(world._core().add_process_set(ranks))


def _note(process_set: ProcessSet, number: int, generation: int) -> None:
    """Makes a set usable that the runtime knows."""
    with _lock:
        if generation != _generation:
            raise ValueError(f"{process_set} was not registered: shutdown() came in between")
        process_set._why = ""
        process_set._stands_for_several = False
        process_set.process_set_id = number
        _registered[number] = process_set


def register_at_init(process_sets: Sequence[ProcessSet]) -> None:
    """Registers what init was given; all ranks call it if any rank was given something.

    Raises:
        ValueError: The ranks disagree, a set is not possible, or two are equal; on every rank.
    """
    _add_agreed(process_sets, _generation)


def _add_agreed(process_sets: Sequence[ProcessSet], generation: int) -> None:
    """Registers sets after all ranks have told each other what they have."""
    own = _passed(process_sets)
    places = agreement.agree([agreement.decode(line) for line in _gather(own.encode())])
    known = get_process_set_ids_and_ranks()
    distinct = list(itertools.chain.from_iterable(places))
    for wanted in distinct:
        if wanted in known.values():
            raise ValueError(f"a process set of the ranks {wanted} is registered already")
    numbers = {tuple(wanted): _add_ranks(wanted) for wanted in distinct}
    for place, process_set in enumerate(process_sets):
        ranks = agreement.own_set(places, own, place)
        process_set._ranks = ranks
        if ranks is not None:
            _note(process_set, numbers[tuple(ranks)], generation)
        else:
            process_set._ranks = []
            process_set._stands_for_several = True
            _stand_ins.append(process_set)
            process_set._why = (
                "it is COMM_NULL on this rank, and the other ranks made several sets in its place"
            )


def _passed(process_sets: Sequence[ProcessSet]) -> Passed:
    """What this rank passes. Its errors travel, so that nobody waits for it."""
    own = Passed(by_comm=[p.mpi_comm is not None for p in process_sets])
    try:
        for process_set in process_sets:
            if process_set.process_set_id is not None:
                raise ValueError(f"{process_set} is registered already")
            ranks = process_set.ranks
            if process_set.mpi_comm is not None:
                ranks = world.ranks_of_communicator(process_set.mpi_comm)
            own.sets.append(ranks)
    except ValueError as error:
        return Passed(error=str(error))
    return own


def _gather(line: str) -> list[str]:
    """What all ranks pass, by rank; no line has a line break."""
    import numpy as np

    from tfring.exceptions import tf_errors

    mine = np.frombuffer(line.encode() + b"\n", np.uint8)
    with tf_errors():
        lines = world._core().allgather(mine, name=f"process_sets.{next(_exchanges)}")
    return str(lines.tobytes().decode()).splitlines()


def remove_process_set(process_set: ProcessSet) -> bool:
    """Forgets a registered set; every rank of the job makes the same call.

    Its number may be given to another set afterwards: functions that were traced with it must not
    run any more.

    Returns:
        False for the global process set, which stays; else True.

    Raises:
        ValueError: It is not registered.
        tf.errors.FailedPreconditionError: Ranks disagree about which set to remove.
        tf.errors.UnavailableError: A rank was lost meanwhile.
    """
    if process_set is global_process_set:
        return False
    if not process_set.takes_part_in_removal():
        checked_id(process_set)
    with _lock:
        number = process_set.process_set_id
        if number is None and not process_set.takes_part_in_removal():
            raise ValueError(f"{process_set}: {process_set._advice()}")
        # From here on nobody begins anything in it; its number may be another's soon.
        process_set.process_set_id = None
        process_set._stands_for_several = False
        process_set._why = "remove_process_set has removed it; add_process_set registers it again"
        generation = _generation
    try:
        _remove(process_set, number)
    except BaseException:
        with _lock:
            if generation == _generation:
                process_set.process_set_id = number
        raise
    with _lock:
        if number is not None and _registered.get(number) is process_set:
            del _registered[number]
    return True


def _remove(process_set: ProcessSet, number: int | None) -> None:
    """Removes the set; with communicators all sets that ranks hold in its place."""
    numbers = [number]
    if process_set.mpi_comm is not None:
        numbers = sorted({n for n in map(json.loads, _gather(json.dumps(number))) if n is not None})
    with _removing, _argument_errors():
        for each in numbers:
            world._core().remove_process_set(each)


def forget_all() -> None:
    """Unregisters all sets but the global one: the job has ended, or is about to begin."""
    global _generation, _exchanges
    with _lock:
        _generation += 1
        for process_set in (*_registered.values(), *_stand_ins):
            process_set.process_set_id = None
            process_set._stands_for_several = False
            process_set._why = (
                "shutdown() has removed it; pass it to init(process_sets=[...]) or to "
                "add_process_set again"
            )
        _registered.clear()
        _stand_ins.clear()
        _exchanges = itertools.count()


def registered() -> dict[int, ProcessSet]:
    """All registered process sets that this rank holds, the global one included, by number.

    Those that init(comm=[...]) made of communicators are found here.
    """
    with _lock:
        return {0: global_process_set, **_registered}


def get_process_set_ids_and_ranks() -> dict[int, list[int]]:
    """The ranks of all process sets that the job has, by number. An error before init."""
    return {int(n): list(ranks) for n, ranks in dict(world._core().process_sets()).items()}


def generation() -> int:
    """Changes with every init and shutdown: what ranks count together begins anew."""
    return _generation


def counting_key(process_set: Any) -> tuple[int, tuple[int, ...]]:
    """Returns that by which ranks count together what belongs to one process set.

    Its number alone will not do: it may be given again, to other ranks with another past.

    Raises:
        ValueError: as checked_id.
    """
    number = checked_id(process_set)
    return number, tuple(process_set.ranks or ()) if number else ()


def checked_id(process_set: Any) -> int:
    """Returns the number that collectives use; None stands for the global process set.

    Raises:
        ValueError: It is not registered, or no process set.
    """
    if process_set is None:
        return 0
    if not isinstance(process_set, ProcessSet):
        raise ValueError(f"process_set has to be a ProcessSet, not {process_set!r}")
    number = process_set.process_set_id
    if number is None:
        raise ValueError(f"{process_set} is not registered: {process_set._advice()}")
    return int(number)
