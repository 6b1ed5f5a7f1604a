"""Collectives that move no data: join and barrier."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfring.ops import arguments, builders, library, names
from tfring.runtime import _native, topology
from tfring.runtime.exceptions import tf_errors
from tfring.runtime.process_sets import ProcessSet, checked_id, global_process_set

# One name for all calls: each rank may join at another place of the script, when its data ends.
_JOIN_NAME = "tfring.join"


@library.outside_autograph
def join(process_set: ProcessSet = global_process_set) -> Any:
    """Says that this rank has no more data, and waits until all ranks have said so.

    Until then allreduce, allgather, broadcast, reduce, gather and barrier go on among the other
    ranks, and Average divides by their number. A collective that needs this rank (alltoall,
    reducescatter, scatter, send or recv with it, or any with it as the root) raises
    FailedPreconditionError on the others. Afterwards all ranks take part again, and default names
    count from zero.

    Args:
        process_set: the ranks that join. A rank that joins the global set is left out of every set.

    Returns:
        The rank that joined last: an int in eager mode, otherwise an int32 scalar, which has to
            run.

    Raises:
        ValueError: the process set is unknown.
        tf.errors.FailedPreconditionError: tfring is not initialized.
        tf.errors.UnavailableError: a rank was lost.
    """
    process_set_id = arguments.begin("join", process_set)
    last = builders.join_op(name=_JOIN_NAME, process_set_id=process_set_id)
    if not tf.executing_eagerly():
        return last
    last = int(last)
    topology.begin_together(process_set_id)
    return last


@library.outside_autograph
def barrier(process_set: ProcessSet | None = None) -> Any:
    """Waits until all ranks of a process set have called it as often as this one.

    In a tf.function or a TF1 graph it builds an op that waits when it runs. In a tf.function this
    op runs by itself, but only operations with a control dependency on it wait for it.

    Args:
        process_set: None means the global one.

    Returns:
        The op when called while a graph is built, otherwise None.

    Raises:
        ValueError: the process set is not registered.
        tf.errors.FailedPreconditionError: tfring is not initialized.
        tf.errors.UnavailableError: a rank was lost meanwhile; other errors as for collectives.
    """
    chosen = global_process_set if process_set is None else process_set
    process_set_id = checked_id(chosen)
    if not tf.executing_eagerly():
        arguments.require_init("barrier")
        full_name = names.collective_name("barrier", None, process_set_id=process_set_id)
        return builders.barrier_op(name=full_name, process_set_id=process_set_id)
    # All calls share a name, because a rank that has joined makes fewer calls. So only one thread
    # of this rank can be in a barrier of the set at a time.
    with chosen.barrier_lock, tf_errors():
        _native.note_call_site()
        _native.core.barrier(name="tfring.barrier", process_set=process_set_id)
    return None
