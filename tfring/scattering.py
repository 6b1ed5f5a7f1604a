"""Collectives that give each rank rows of its own: alltoall and reducescatter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfring import arguments, names, tf_library, tf_ops
from tfring.compression import Compression
from tfring.process_sets import ProcessSet, checked_id, global_process_set
from tfring.reduce_ops import Average


@tf_library.outside_autograph
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends rows to every rank and receives rows from every rank.

    Differentiable; tfring.gradients says which loss the gradient belongs to.

    Args:
        tensor: tensor, variable or array with at least one dimension, of any number or bool dtype:
            the rows for the first rank, then those for the second, and so on. All dimensions but
            the first must be the same on every rank.
        splits: vector of how many rows go to each rank of the process set, int32 or int64; each
            rank has its own. None for equal parts.
        name: the same on every rank; made up by default.
        ignore_name_scope: use `name` as it is, without the current name scope.
        process_set: the ranks that take part.

    Returns:
        The rows from the first rank, then those from the second, and so on. With `splits` a pair:
        these rows, and a vector of how many came from each rank, of the dtype of `splits`.

    Raises:
        ValueError: the process set is unknown.
        TypeError: a dtype is not supported.
        tf.errors.InvalidArgumentError: on every rank: some rank's tensor is a scalar; its splits
            are no vector with a number of rows for each rank or do not add up to its rows; or,
            without splits, its rows cannot be cut into equal parts.
        tf.errors.FailedPreconditionError: tfring is not initialized, ranks disagree on dtype or
            row shape, or a rank has joined.
        tf.errors.UnavailableError: a rank was lost.
    """
    process_set_id = checked_id(process_set)
    arguments.require_init("alltoall")
    arguments.refuse_sparse([tensor], name, "alltoall")
    value = arguments.checked_tensor(tensor, name, tf_library.MOVABLE, "alltoall")
    sizes = checked_splits(splits, name)
    full_name = names.collective_name("alltoall", name, ignore_name_scope, process_set)
    received, received_splits = tf_ops.alltoall_op(
        value, sizes, name=full_name, process_set_id=process_set_id
    )
    return received if splits is None else (received, received_splits)


@tf_library.outside_autograph
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduces a tensor over all ranks and gives each rank its share of the rows.

    Differentiable; tfring.gradients says which loss the gradient belongs to.

    Args:
        tensor: tensor, variable or array with at least one dimension, of the same shape on every
            rank: float16, bfloat16, float32, float64, int8, uint8, int32 or int64.
        device_dense: device for the reduction, "" for TensorFlow's choice.
        compression: what is done to the tensor on the wire.
        op: Average, Sum, Min, Max or Product.
        name: the same on every rank; made up by default.
        process_set: the ranks that take part.
        ignore_name_scope: use `name` as it is, without the current name scope.
        prescale_factor: multiplies every rank's tensor before the reduction.
        postscale_factor: multiplies the result.

    Returns:
        Consecutive rows of the result. Where they cannot be cut into equal parts, the first ranks
        have one row more than the last.

    Raises:
        ValueError: op or the process set is unknown.
        TypeError: the dtype is not supported.
        NotImplementedError: tf.IndexedSlices, or op is Adasum.
        tf.errors.InvalidArgumentError: on every rank: some rank's tensor is a scalar.
        tf.errors.FailedPreconditionError: tfring is not initialized, ranks disagree on dtype,
            shape, op or factors, or a rank has joined.
        tf.errors.UnavailableError: a rank was lost.
    """
    return _reducescatter(
        [tensor],
        "reducescatter",
        device_dense,
        compression,
        op,
        name,
        process_set,
        ignore_name_scope,
        (prescale_factor, postscale_factor),
    )[0]


@tf_library.outside_autograph
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    ignore_name_scope: bool = False,
) -> list[Any]:
    """Reduces a list of tensors as reducescatter does, those of one dtype as one collective.

    Args:
        tensors: what reducescatter takes; shapes and dtypes may differ between the tensors.
        device_dense: as in reducescatter, like all the other parameters.
        compression: as in reducescatter.
        op: as in reducescatter.
        process_set: as in reducescatter.
        prescale_factor: as in reducescatter.
        postscale_factor: as in reducescatter.
        name: as in reducescatter; names the group.
        ignore_name_scope: as in reducescatter.

    Returns:
        This rank's rows of each tensor, in the order of `tensors`.

    Raises:
        Exception: what reducescatter raises.
    """
    return _reducescatter(
        list(tensors),
        "grouped_reducescatter",
        device_dense,
        compression,
        op,
        name,
        process_set,
        ignore_name_scope,
        (prescale_factor, postscale_factor),
    )


def checked_splits(splits: Any, name: str | None) -> Any:
    """Returns splits as an int32 or int64 tensor, or None; what is in them is checked later.

    Raises:
        TypeError: they are no integers of 32 or 64 bits.
    """
    if splits is None:
        return None
    sizes = tf.convert_to_tensor(splits)
    if sizes.dtype == tf.float32 and sizes.shape.num_elements() == 0:
        sizes = tf.cast(sizes, tf.int32)  # an empty list says nothing about its dtype
    label = f"splits of {name or arguments.UNNAMED}"
    tf_library.check_dtype(sizes, label, ("int32", "int64"), "a number of rows")
    return sizes


def _reducescatter(
    tensors: list[Any],
    kind: str,
    device: str,
    compression: Any,
    op: int,
    name: str | None,
    process_set: ProcessSet,
    ignore_name_scope: bool,
    factors: tuple[float, float],
) -> list[Any]:
    """Builds one op per dtype."""
    op = arguments.checked_elementwise_op(op, "reducescatter")
    process_set_id = checked_id(process_set)
    arguments.require_init(kind)
    arguments.refuse_sparse(tensors, name, "reducescatter")
    if not tensors:
        return []
    results: list[Any] = [None] * len(tensors)
    with arguments.on_device(device):
        wires = arguments.compress(tensors, name, compression, "reducescatter", op)
        full_name = names.collective_name(kind, name, ignore_name_scope, process_set)
        for op_name, positions in arguments.by_dtype([wire for wire, _ in wires], full_name):
            reduced = tf_ops.reducescatter_op(
                [wires[i][0] for i in positions],
                name=op_name,
                op=op,
                prescale=factors[0],
                postscale=factors[1],
                process_set_id=process_set_id,
                group=kind.startswith("grouped"),
            )
            for i, wire in zip(positions, reduced, strict=True):
                results[i] = compression.decompress(wire, wires[i][1])
    return results
