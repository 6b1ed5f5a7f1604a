"""Who we are among the ranks of the job; all but `is_initialized` raise an error before init.

A process that a rank has started, forked or not, is no rank, but gets the rank's answers: a worker
of an input pipeline chooses its share of the data by them. What a rank leaves to the processes that
it starts is in one variable of the environment.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from tfring.runtime import _native

PARENT = "TFRING_X_PARENT"

# In an elastic job: the numbers of the last generation, which stay until the next one, and the slot
# of this process on its host, which it has for life.
_kept: dict[str, int] = {}
_slot: int | None = None
_launched_alone = False  # whether the job that we are in was launched as one process
_waits = False  # whether we are a job of our own only until the others take us into theirs

_listeners: list[Callable[[int], None]] = []  # of begin_together

_NUMBERS = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")


class NotInitializedError(ValueError, RuntimeError):
    """Something was asked for that is known only after init. Horovod raises a ValueError then."""


def _ask(name: str) -> Any:
    try:
        return getattr(_native.core, name)()
    except _native.core.CoreError as error:
        raise NotInitializedError(error.message) from None


def is_initialized() -> bool:
    """Whether init has been called, and shutdown has not."""
    return bool(_native.core.is_initialized())


def set_local_rank(slot: int) -> None:
    """Makes this the local rank from now on: other processes of the host may come and go.

    Args:
        slot: The slot of this process on its host.
    """
    global _slot
    _slot = slot


def set_launched_alone(alone: bool) -> None:
    """Says whether our job has this one process, because no other was launched."""
    global _launched_alone
    _launched_alone = alone


def set_waiting(waits: bool) -> None:
    """Says whether this process, in a job of its own, will be taken into the elastic job.

    Args:
        waits: If not, `rank` and `size` say what it is there.
    """
    global _waits
    _waits = waits


def waiting() -> bool:
    """Whether this process is in a job of its own until others take it into theirs."""
    return _waits and is_initialized()


def on_begin_together(listener: Callable[[int], None]) -> None:
    """Has a function called whenever ranks begin together: with the number of the process set.

    That is with 0 after init and in each new generation of an elastic job, and after a join.
    """
    _listeners.append(listener)


def begin_together(process_set_id: int) -> None:
    """Tells the listeners; to be called on all ranks of the process set, 0 for all ranks."""
    for listener in _listeners:
        listener(process_set_id)


def announce(*, keep: bool = False) -> None:
    """Leaves our numbers to the processes that this rank will start, and tells listeners.

    Args:
        keep: They hold until the next init, also while this process is between two generations.
    """
    numbers = {name: int(getattr(_native.core, name)()) for name in _NUMBERS}
    if _slot is not None:
        numbers["local_rank"] = _slot
    if keep:
        _kept.update(numbers)
    os.environ[PARENT] = json.dumps({"pid": os.getpid(), **numbers})
    begin_together(0)


def withdraw() -> None:
    """Takes back what `announce` left."""
    os.environ.pop(PARENT, None)


def parent() -> dict[str, int]:
    """What the rank that started this process has left: its pid and its numbers, or nothing."""
    try:
        left = json.loads(os.environ.get(PARENT) or "{}")
        numbers = {name: int(left[name]) for name in ("pid", *_NUMBERS)} if left else {}
    except (ValueError, TypeError, KeyError):
        return {}
    return {} if numbers.get("pid") == os.getpid() else numbers


def started_by() -> str:
    """Says which rank has started this process and what that means, or nothing."""
    numbers = parent()
    if numbers.get("size", 1) == 1:
        return ""
    return (
        f"this process was started by rank {numbers['rank']} (process {numbers['pid']}), which is "
        "in the job already, so it cannot join it. rank() and size() answer for that rank here; "
        'call init in the script only where __name__ is "__main__". A process that starts a job of '
        f"its own unsets {PARENT} first"
    )


def _number(name: str) -> int:
    if name in _kept and (name == "local_rank" or not is_initialized()):
        return _kept[name]
    numbers = {} if is_initialized() else parent()
    return int(numbers[name] if numbers else _ask(name))


def slot() -> int | None:
    """Our slot on this host in an elastic job, which we have for life; None in other jobs."""
    return _slot


def always_alone() -> bool:
    """Whether this rank is the only one, now and after another init. False before init.

    A rank of an elastic job may be alone when it traces a step, and later not. So may a process
    that was launched with others and leaves them out of `init`.
    """
    return _launched_alone and is_initialized()


def rank() -> int:
    """Our rank in the job, from 0 to size() - 1."""
    return _number("rank")


def size() -> int:
    """The number of ranks in the job."""
    return _number("size")


def local_rank() -> int:
    """Our rank among the job's processes on this host."""
    return _number("local_rank")


def local_size() -> int:
    """The number of the job's processes on this host."""
    return _number("local_size")


def cross_rank() -> int:
    """Our rank among the processes that have our local rank, one on each host."""
    return _number("cross_rank")


def cross_size() -> int:
    """The number of hosts that have a process with our local rank."""
    return _number("cross_size")
