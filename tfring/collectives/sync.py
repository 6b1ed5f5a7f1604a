"""Collectives that move no data: join, and the barrier as an op."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfring.ops import arguments, builders, library, names
from tfring.process_sets import ProcessSet, checked_id, global_process_set

# One name for all calls, wherever they are made: a rank joins wherever its data ends.
_JOIN_NAME = "tfring.join"


@library.outside_autograph
def join(process_set: ProcessSet = global_process_set) -> Any:
    """Says that this rank has no more data, and waits until all ranks have said so.

    Until then the others' allreduce, allgather, broadcast, reduce, gather and barrier, which need
    no rank in particular, are done among those that have not joined, and Average divides by their
    number. What addresses this rank (alltoall, reducescatter, scatter, send and recv, a root that
    has joined) fails on the others with FailedPreconditionError. Afterwards all ranks take part
    again, and default names are counted from zero again.

    Args:
        process_set: the ranks that join. Who joins all ranks is absent from every process set.

    Returns:
        The rank that joined last: an int in eager mode, else an int32 scalar, which has to run.

    Raises:
        ValueError: the process set is unknown.
        tf.errors.FailedPreconditionError: tfring is not initialized.
        tf.errors.UnavailableError: a rank was lost.
    """
    process_set_id = checked_id(process_set)
    arguments.require_init("join")
    last = builders.join_op(name=_JOIN_NAME, process_set_id=process_set_id)
    return int(last) if tf.executing_eagerly() else last


@library.outside_autograph
def barrier_op(name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Waits until all ranks have come here; for graphs, where tfring.barrier does not run.

    Args:
        name: the same on every rank; made up by default.
        process_set: the ranks that wait for each other.

    Returns:
        The operation when called while a graph is built, else None. In a tf.function it runs by
        itself, but only operations with a control dependency on it wait for it.

    Raises:
        ValueError: the process set is unknown.
        tf.errors.FailedPreconditionError: tfring is not initialized.
        tf.errors.UnavailableError: a rank was lost.
    """
    process_set_id = checked_id(process_set)
    arguments.require_init("barrier")
    full_name = names.collective_name("barrier", name, False, process_set)
    return builders.barrier_op(name=full_name, process_set_id=process_set_id)
