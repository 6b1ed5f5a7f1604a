"""Builds the ops of the collectives: one function per op.

Each takes what the op's attributes need, the whole name and the number of the process set, and
refuses dtypes that the op does not have, and functions with jit_compile=True.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfring.ops import library, xla
from tfring.ops.library import MOVABLE, REDUCIBLE
from tfring.ops.reduce_ops import Average


def allreduce_op(
    tensors: Sequence[Any],
    *,
    name: str,
    op: int,
    prescale: float = 1.0,
    postscale: float = 1.0,
    process_set_id: int = 0,
    layout_hash: int = 0,
    group: bool = False,
) -> list[Any]:
    """Builds one TfringAllreduce of tensors of one dtype; returns tensors of the same shapes."""
    library.refuse_xla(name, "allreduce")
    for tensor in tensors:
        library.check_dtype(tensor, name, REDUCIBLE, "allreduce")
    reduced: list[Any] = _build(
        library.load().tfring_allreduce,
        name,
        tensors=list(tensors),
        reduce_op=op,
        prescale_factor=_as_text(prescale),
        postscale_factor=_as_text(postscale),
        process_set_id=process_set_id,
        layout_hash=_as_int64(layout_hash),
        group=group,
    )
    return reduced


def allgather_op(
    tensors: Sequence[Any], *, name: str, process_set_id: int = 0, group: bool = False
) -> list[Any]:
    """Builds one TfringAllgather of tensors of one dtype; first dimensions become sums."""
    library.refuse_xla(name, "allgather")
    for tensor in tensors:
        library.check_dtype(tensor, name, MOVABLE, "allgather")
    gathered: list[Any] = _build(
        library.load().tfring_allgather,
        name,
        tensors=list(tensors),
        process_set_id=process_set_id,
        group=group,
    )
    return gathered


def broadcast_op(
    tensors: Sequence[Any], *, name: str, root_rank: int, process_set_id: int = 0
) -> list[Any]:
    """Builds one TfringBroadcast of tensors of one dtype; returns tensors of the same shapes."""
    library.refuse_xla(name, "broadcast")
    for tensor in tensors:
        library.check_dtype(tensor, name, MOVABLE, "broadcast")
    values: list[Any] = _build(
        library.load().tfring_broadcast,
        name,
        tensors=list(tensors),
        root_rank=root_rank,
        process_set_id=process_set_id,
    )
    return values


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
    reduced: list[Any] = library.load().tfring_reducescatter(
        tensors=list(tensors),
        reduce_op=op,
        prescale_factor=_as_text(prescale),
        postscale_factor=_as_text(postscale),
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
    received, received_splits = library.load().tfring_alltoall(
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
    reduced: list[Any] = library.load().tfring_reduce(
        tensors=list(tensors),
        root_rank=root_rank,
        reduce_op=op,
        prescale_factor=_as_text(prescale),
        postscale_factor=_as_text(postscale),
        **_common("TfringReduce", name, process_set_id),
    )
    return reduced


def gather_op(tensor: Any, *, name: str, root_rank: int, process_set_id: int = 0) -> Any:
    """Builds one TfringGather; returns no rows on all ranks but the root."""
    _check([tensor], name, MOVABLE, "gather")
    return library.load().tfring_gather(
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
    return library.load().tfring_scatter(
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
    return library.load().tfring_send(
        tensor=tensor,
        source=source,
        destination=destination,
        **_common("TfringSend", name, process_set_id),
    )


def recv_op(
    dtype: Any, shape: Any, *, name: str, source: int, destination: int, process_set_id: int = 0
) -> Any:
    """Builds one TfringRecv; the shape may be unknown, wholly or in parts."""
    library.refuse_xla(name)
    return library.load().tfring_recv(
        T=dtype,
        shape=shape,
        source=source,
        destination=destination,
        **_common("TfringRecv", name, process_set_id),
    )


def barrier_op(*, name: str, process_set_id: int = 0) -> Any:
    """Builds one TfringBarrier; returns the operation, in eager mode None."""
    library.refuse_xla(name)
    return library.load().tfring_barrier(**_common("TfringBarrier", name, process_set_id))


def join_op(*, name: str, process_set_id: int = 0) -> Any:
    """Builds one TfringJoin; returns the rank that joined last, an int32 scalar."""
    library.refuse_xla(name)
    return library.load().tfring_join(**_common("TfringJoin", name, process_set_id))


def _check(tensors: Sequence[Any], name: str, supported: Sequence[str], kind: str) -> None:
    library.refuse_xla(name, kind)
    for tensor in tensors:
        library.check_dtype(tensor, name, supported, kind)


def _splits(splits: Any) -> Any:
    return tf.zeros([0], tf.int32) if splits is None else splits


def _common(kind: str, name: str, process_set_id: int) -> dict[str, Any]:
    """What every collective op has."""
    return {
        "channel": library.channel(name, process_set_id),
        "tensor_name": name,
        "process_set_id": process_set_id,
        "name": _node_name(kind, name),
    }


def _build(make: Callable[..., Any], name: str, *, process_set_id: int, **inputs: Any) -> Any:
    """Builds one op; under XLA behind all others, see tfring.ops.xla."""
    kind = "".join(part.title() for part in make.__name__.split("_"))
    inputs.update(tensor_name=name, process_set_id=process_set_id, name=_node_name(kind, name))
    if not xla.compiling():
        with xla.left_alone():
            return make(channel=library.channel(name, process_set_id), **inputs)
    with xla.in_order():
        return make(channel=xla.chain(), **inputs)


def _as_text(factor: float) -> str:
    """The shortest text that gives the same double again."""
    return repr(float(factor))


def _as_int64(value: int) -> int:
    """The signed number with the same 64 bits."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def _node_name(kind: str, name: str) -> str | None:
    """A node name for people who look at graphs; means nothing to the ranks."""
    if tf.executing_eagerly():
        return None
    return f"{kind}_{re.sub('[^A-Za-z0-9_.-]', '_', name)}"
