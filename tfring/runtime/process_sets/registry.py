"""Which process sets this job has: adding and removing them, from init to shutdown.

Adding and removing a set are collectives over all ranks of the job. The runtime knows the sets by
id and checks that the ranks agree; kept here are the ProcessSet objects that users hold. An id is
never used again for another set of the same job.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from tfring.runtime import _native, communicators
from tfring.runtime.communicators import is_communicator, spans_world
from tfring.runtime.exceptions import tf_errors
from tfring.runtime.process_sets import agreement
from tfring.runtime.process_sets.agreement import SetProposal
from tfring.runtime.process_sets.process_set import ProcessSet, global_process_set
from tfring.runtime.topology import size

_INVALID_ARGUMENT = 3

# Guards what follows, and whether a ProcessSet is registered.
_lock = threading.Lock()
_registered: dict[int, ProcessSet] = {}
# COMM_NULL on this rank, where the other ranks registered several sets in their place.
_null_here: list[ProcessSet] = []
_generation = 0
_exchanges = itertools.count()  # numbers the exchanges of a generation, for their names
_mpi_group: Any = None  # of the job's ranks, where MPI brought them together

# All ranks add sets under one name, and remove them under one, so that the runtime can tell them
# when they disagree. So only one thread of a rank can do either at a time.
_adding = threading.Lock()
_removing = threading.Lock()


def begin_generation(mpi_group: Any) -> None:
    """Forgets the sets of an earlier job; the runtime has just started another one.

    Args:
        mpi_group: The MPI group of the job's ranks, which `end_generation` frees; or None.
    """
    global _mpi_group
    _forget_all()
    _mpi_group = mpi_group


def end_generation() -> None:
    """Unregisters all sets but the global one: the runtime has shut down."""
    global _mpi_group
    _forget_all()
    if _mpi_group is not None:
        communicators.free_group(_mpi_group)
        _mpi_group = None


def _forget_all() -> None:
    global _generation, _exchanges
    with _lock:
        _generation += 1
        for process_set in (*_registered.values(), *_null_here):
            process_set.process_set_id = None
            process_set._why = (
                "shutdown() has removed it; pass it to init(process_sets=[...]) or to "
                "add_process_set again"
            )
        _registered.clear()
        _null_here.clear()
        _exchanges = itertools.count()


def generation() -> int:
    """A number that changes with every init and shutdown of this process."""
    return _generation


def registered() -> dict[int, ProcessSet]:
    """All registered process sets that this rank holds, the global one included, by id.

    Those that init(comm=[...]) made of communicators are found here.
    """
    with _lock:
        return {0: global_process_set, **_registered}


def get_process_set_ids_and_ranks() -> dict[int, list[int]]:
    """The ranks of all process sets that the job has, by id. An error before init."""
    return {int(n): list(ranks) for n, ranks in dict(_native.core.process_sets()).items()}


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Registers a process set; every rank of the job makes the same call.

    With sets made from communicators different ranks may pass different ones, as after
    MPI_Comm_split: all of them are registered. Threads may add sets at the same time if the calls
    come in the same order on every rank.

    Args:
        process_set: The set, or its ranks, or a communicator.

    Returns:
        The set, whose `process_set_id` is now the same on all its ranks.

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
        _register(process_set, _add_ranks(process_set._ranks), generation)
    return process_set


def register_at_init(process_sets: Sequence[ProcessSet]) -> None:
    """Registers what init was given; all ranks call it if any rank was given something.

    Raises:
        ValueError: The ranks disagree, a set is not possible, or two are equal; on every rank.
    """
    _add_agreed(process_sets, _generation)


def job_and_sets(comm: Any) -> tuple[Any, list[Any]]:
    """Splits `comm` into the job and the communicators that process sets are made of.

    Args:
        comm: As init has it.
    """
    if comm is None or is_communicator(comm) or not hasattr(comm, "__iter__"):
        return comm, []
    members = list(comm)
    if members and all(is_communicator(member) for member in members):
        return None, [member for member in members if not spans_world(member)]
    return members, []


def given_sets(process_sets: Any) -> list[Any]:
    """Returns the process sets that init got.

    Args:
        process_sets: As init has it.

    Raises:
        ValueError: It is something else.
    """
    if process_sets is None:
        return []
    if isinstance(process_sets, str):
        if process_sets.lower() != "dynamic":
            raise ValueError(
                f'init(process_sets="{process_sets}"): a list of process sets, or "dynamic"'
            )
        return []
    given = list(process_sets)
    for process_set in given:
        if not isinstance(process_set, ProcessSet):
            raise ValueError(
                f"init(process_sets=...) holds {process_set!r}, which is no ProcessSet"
            )
    return given


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a registered set; every rank of the job makes the same call.

    A function that was traced with the set fails from then on.

    Returns:
        False for the global process set, which stays; else True.

    Raises:
        ValueError: It is not registered.
        tf.errors.FailedPreconditionError: Ranks disagree about which set to remove.
        tf.errors.UnavailableError: A rank was lost meanwhile.
    """
    if process_set is global_process_set:
        return False
    with _lock:
        set_id, why = process_set.process_set_id, process_set._why
        if set_id is None and not any(one is process_set for one in _null_here):
            raise ValueError(f"{process_set} is not registered: {process_set._advice()}")
        # From here on no thread of this rank begins a collective in it.
        process_set.process_set_id = None
        process_set._why = "remove_process_set has removed it; add_process_set registers it again"
        generation = _generation
    try:
        _remove(process_set, set_id)
    except BaseException:
        with _lock:
            if generation == _generation:
                process_set.process_set_id, process_set._why = set_id, why
        raise
    with _lock:
        _null_here[:] = [one for one in _null_here if one is not process_set]
        if set_id is not None and _registered.get(set_id) is process_set:
            del _registered[set_id]
    return True


def _remove(process_set: ProcessSet, set_id: int | None) -> None:
    """Removes the set; with communicators all sets that ranks hold in its place."""
    set_ids = [] if set_id is None else [set_id]
    if process_set.mpi_comm is not None:
        set_ids = sorted({n for n in map(json.loads, _gather(json.dumps(set_id))) if n is not None})
    with _removing, _argument_errors():
        for each in set_ids:
            _native.note_call_site()
            _native.core.remove_process_set(each)


def _register(process_set: ProcessSet, set_id: int | None, generation: int) -> None:
    """Makes a set usable that the runtime has; None: others made several sets in its place."""
    with _lock:
        if generation != _generation:
            raise ValueError(f"{process_set} was not registered: shutdown() came in between")
        process_set.process_set_id, process_set._why = set_id, ""
        if set_id is not None:
            _registered[set_id] = process_set
            return
        process_set._why = (
            "it is COMM_NULL on this rank, and the other ranks made several sets in its place"
        )
        _null_here.append(process_set)


def _add_ranks(ranks: list[int]) -> int:
    with _adding, _argument_errors():
        _native.note_call_site()
        return int(_native.core.add_process_set(ranks))


def _add_agreed(process_sets: Sequence[ProcessSet], generation: int) -> None:
    """Registers sets after the ranks have exchanged what each of them proposes."""
    own = _proposal(process_sets)
    lines = _gather(own.encode())
    places = agreement.agree([agreement.decode(line) for line in lines])
    known = get_process_set_ids_and_ranks()
    distinct = list(itertools.chain.from_iterable(places))
    for wanted in distinct:
        if wanted in known.values():
            raise ValueError(f"a process set of the ranks {wanted} is registered already")
    set_ids = {tuple(wanted): _add_ranks(wanted) for wanted in distinct}
    for place, process_set in enumerate(process_sets):
        ranks = agreement.own_set(places, own, place)
        process_set._ranks = ranks or []
        _register(process_set, set_ids[tuple(ranks)] if ranks else None, generation)


def _proposal(process_sets: Sequence[ProcessSet]) -> SetProposal:
    """What this rank proposes. An error of its own is sent, so that all ranks raise it."""
    own = SetProposal(by_comm=[p.mpi_comm is not None for p in process_sets])
    try:
        for process_set in process_sets:
            if process_set.process_set_id is not None:
                raise ValueError(f"{process_set} is registered already")
            ranks = process_set.ranks
            if process_set.mpi_comm is not None:
                ranks = _ranks_of(process_set.mpi_comm)
            own.sets.append(ranks)
    except ValueError as error:
        return SetProposal(error=str(error))
    return own


def _ranks_of(comm: Any) -> list[int] | None:
    """The ranks in the job of a communicator's processes, ascending; None for COMM_NULL.

    Raises:
        ValueError: It has processes outside of the job, or MPI did not start the job.
    """
    if communicators.is_null(comm):
        return None
    if _mpi_group is None:
        if size() == comm.size == 1:
            return [0]
        raise ValueError(
            "process sets are made from communicators only where MPI brought the job together: "
            "start it with mpirun, or make them of ranks"
        )
    return communicators.ranks_in(_mpi_group, comm)


def _gather(line: str) -> list[str]:
    """Returns the lines that all ranks pass, by rank; no line has a line break."""
    import numpy as np

    mine = np.frombuffer(line.encode() + b"\n", np.uint8)
    with tf_errors():
        _native.note_call_site()
        lines = _native.core.allgather(mine, name=f"process_sets.{next(_exchanges)}")
    return str(lines.tobytes().decode()).splitlines()


@contextlib.contextmanager
def _argument_errors() -> Iterator[None]:
    """A CoreError about arguments leaves as ValueError, any other as the tf.errors exception."""
    with tf_errors():
        try:
            yield
        except _native.core.CoreError as error:
            if getattr(error, "code", None) != _INVALID_ARGUMENT:
                raise
            raise ValueError(getattr(error, "message", str(error))) from error
