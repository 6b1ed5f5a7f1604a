"""Builds the ops of the collectives that are not in tfring.tf_library: one function per op.

Each takes what the op's attributes need, the whole name and the number of the process set, and
refuses dtypes that the op does not have, and functions with jit_compile=True.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfring import tf_library
from tfring.reduce_ops import Average
from tfring.tf_library import MOVABLE, REDUCIBLE


def reducescatter_op(
    tensors: Sequence[Any],
    *,
    name: str,
    op: int = Average,
    prescale: float = 1.0,
    postscale: float = 1.0,
    process_set_id: int = 0,
    group: bool = False,
) -> list[Any]:
    """Builds one TfringReducescatter of tensors of one dtype; returns this rank's rows."""
    _check(tensors, name, REDUCIBLE, "reducescatter")
    reduced: list[Any] = tf_library.library().tfring_reducescatter(
        tensors=list(tensors),
        reduce_op=op,
        prescale_factor=tf_library.as_text(prescale),
        postscale_factor=tf_library.as_text(postscale),
        group=group,
        **_common("TfringReducescatter", name, process_set_id),
    )
    return reduced


def alltoall_op(tensor: Any, splits: Any, *, name: str, process_set_id: int = 0) -> tuple[Any, Any]:
    """Builds one TfringAlltoall; returns rows and how many came from each rank.

    Args:
        tensor: the rows for all ranks, in their order.
        splits: int32 or int64 vector of rows per rank; None for equal parts.
        name: the whole name.
        process_set_id: the process set.
    """
    _check([tensor], name, MOVABLE, "alltoall")
    received, received_splits = tf_library.library().tfring_alltoall(
        tensor=tensor,
        splits=_splits(splits),
        equal_splits=splits is None,
        **_common("TfringAlltoall", name, process_set_id),
    )
    return received, received_splits


def reduce_op(
    tensors: Sequence[Any],
    *,
    name: str,
    root_rank: int,
    op: int = Average,
    prescale: float = 1.0,
    postscale: float = 1.0,
    process_set_id: int = 0,
) -> list[Any]:
    """Builds one TfringReduce of tensors of one dtype; returns zeros on all ranks but the root."""
    _check(tensors, name, REDUCIBLE, "reduce")
    reduced: list[Any] = tf_library.library().tfring_reduce(
        tensors=list(tensors),
        root_rank=root_rank,
        reduce_op=op,
        prescale_factor=tf_library.as_text(prescale),
        postscale_factor=tf_library.as_text(postscale),
        **_common("TfringReduce", name, process_set_id),
    )
    return reduced


def gather_op(tensor: Any, *, name: str, root_rank: int, process_set_id: int = 0) -> Any:
    """Builds one TfringGather; returns no rows on all ranks but the root."""
    _check([tensor], name, MOVABLE, "gather")
    return tf_library.library().tfring_gather(
        tensor=tensor, root_rank=root_rank, **_common("TfringGather", name, process_set_id)
    )


def scatter_op(
    tensor: Any, splits: Any, *, name: str, root_rank: int, process_set_id: int = 0
) -> Any:
    """Builds one TfringScatter; the other ranks' tensors only say dtype and row shape.

    Args:
        tensor: on the root the rows for all ranks, in their order.
        splits: on the root an int32 or int64 vector of rows per rank; None for equal parts.
        name: the whole name.
        root_rank: whose rows are scattered.
        process_set_id: the process set.
    """
    _check([tensor], name, MOVABLE, "scatter")
    return tf_library.library().tfring_scatter(
        tensor=tensor,
        splits=_splits(splits),
        equal_splits=splits is None,
        root_rank=root_rank,
        **_common("TfringScatter", name, process_set_id),
    )


def send_op(
    tensor: Any, *, name: str, source: int, destination: int, process_set_id: int = 0
) -> Any:
    """Builds one TfringSend; returns the operation, in eager mode None."""
    _check([tensor], name, MOVABLE, "send")
    return tf_library.library().tfring_send(
        tensor=tensor,
        source=source,
        destination=destination,
        **_common("TfringSend", name, process_set_id),
    )


def recv_op(
    dtype: Any, shape: Any, *, name: str, source: int, destination: int, process_set_id: int = 0
) -> Any:
    """Builds one TfringRecv; the shape may be unknown, wholly or in parts."""
    tf_library.refuse_xla(name)
    return tf_library.library().tfring_recv(
        T=dtype,
        shape=shape,
        source=source,
        destination=destination,
        **_common("TfringRecv", name, process_set_id),
    )


def barrier_op(*, name: str, process_set_id: int = 0) -> Any:
    """Builds one TfringBarrier; returns the operation, in eager mode None."""
    tf_library.refuse_xla(name)
    return tf_library.library().tfring_barrier(**_common("TfringBarrier", name, process_set_id))


def join_op(*, name: str, process_set_id: int = 0) -> Any:
    """Builds one TfringJoin; returns the rank that joined last, an int32 scalar."""
    tf_library.refuse_xla(name)
    return tf_library.library().tfring_join(**_common("TfringJoin", name, process_set_id))


def _check(tensors: Sequence[Any], name: str, supported: Sequence[str], kind: str) -> None:
    tf_library.refuse_xla(name, kind)
    for tensor in tensors:
        tf_library.check_dtype(tensor, name, supported, kind)


def _splits(splits: Any) -> Any:
    return tf.zeros([0], tf.int32) if splits is None else splits


def _common(kind: str, name: str, process_set_id: int) -> dict[str, Any]:
    """What every collective op has."""
    return {
        "channel": tf_library.channel(name, process_set_id),
        "tensor_name": name,
        "process_set_id": process_set_id,
        "name": tf_library.node_name(kind, name),
    }
