"""send and recv: a tensor from one rank to another.

Horovod has neither. The ranks are world ranks, also within a process set. A call is made for the
rank that builds it, so a function that was traced before another init is traced again.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfring.ops import arguments, builders, library, names
from tfring.runtime.process_sets import ProcessSet, global_process_set
from tfring.runtime.topology import rank


@library.outside_autograph
def send(
    tensor: Any,
    dest: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Sends a tensor to another rank, which calls recv.

    In eager mode it returns when the receiver has the tensor. It has no gradient.

    Args:
        tensor: tensor, variable, array or number of any shape and of any number or bool dtype.
        dest: the rank that receives it.
        name: the receiver's name for the call; made up by default: the n-th send from one rank to
            another goes to the n-th recv.
        process_set: the process set, of which both are members.
        ignore_name_scope: use `name` as it is, without the current name scope.

    Returns:
        The operation when called while a graph is built, else None. A tf.function runs it by
        itself and cannot return it.

    Raises:
        ValueError: the process set is unknown, or dest is this rank.
        TypeError: the dtype is not supported.
        NotImplementedError: tf.IndexedSlices.
        tf.errors.InvalidArgumentError: one of the two is not in the process set.
        tf.errors.FailedPreconditionError: tfring is not initialized, the receiver wants another
            dtype or shape, or it has joined.
        tf.errors.UnavailableError: a rank was lost.
    """
    process_set_id = arguments.begin("send", process_set)
    source, dest = rank(), int(dest)
    arguments.refuse_sparse([tensor], name, "send")
    value = arguments.checked_tensor(tensor, name, library.MOVABLE, "send")
    return builders.send_op(
        value,
        name=_name(name, ignore_name_scope, process_set_id, source, dest),
        source=source,
        destination=dest,
        process_set_id=process_set_id,
    )


@library.outside_autograph
def recv(
    source: int,
    dtype: Any,
    shape: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Receives a tensor from another rank, which calls send.

    It has no gradient: nothing of this rank's loss reaches the sender's variables.

    Args:
        source: the rank that sends it.
        dtype: the tensor's dtype.
        shape: its shape, or what is known of it: None for a dimension, or for all, that the sender
            decides.
        name: the sender's name for the call; made up by default.
        process_set: the process set, of which both are members.
        ignore_name_scope: use `name` as it is, without the current name scope.

    Returns:
        The tensor.

    Raises:
        ValueError: the process set is unknown, or source is this rank.
        TypeError: the dtype is not supported.
        tf.errors.InvalidArgumentError: one of the two is not in the process set.
        tf.errors.FailedPreconditionError: tfring is not initialized, the sender has another dtype
            or shape, or it has joined.
        tf.errors.UnavailableError: a rank was lost.
    """
    process_set_id = arguments.begin("recv", process_set)
    source, dest = int(source), rank()
    wanted = tf.TensorSpec(shape, dtype)
    library.check_dtype(wanted, name or arguments.UNNAMED, library.MOVABLE, "recv")
    return builders.recv_op(
        wanted.dtype,
        wanted.shape,
        name=_name(name, ignore_name_scope, process_set_id, source, dest),
        source=source,
        destination=dest,
        process_set_id=process_set_id,
    )


def _name(
    name: str | None, ignore_name_scope: bool, process_set_id: int, source: int, dest: int
) -> str:
    """Returns the pair's name for the call; other pairs may use the same one."""
    if source == dest:
        raise ValueError(f"rank {source} cannot send to or receive from itself")
    return names.collective_name(
        "send", name, ignore_name_scope, process_set_id, suffix=f".{source}to{dest}"
    )
