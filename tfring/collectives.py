"""The collectives on tensors: what users call, with Horovod's parameters.

They work in eager mode, in a tf.function and in TF1 graphs. The same call must happen on every rank
of the process set, under the same name (tfring.names says how default names come about).
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfring import names, reduce_ops, tf_library
from tfring._native import core
from tfring.compression import Compression
from tfring.process_sets import ProcessSet, checked_id, global_process_set
from tfring.reduce_ops import Adasum, Average, Max, Min, Product, Sum
from tfring.topology_ops import (
    cross_rank_op,
    cross_size_op,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allreduce",
    "broadcast",
    "bucket_allreduce",
    "bucket_broadcast",
    "cross_rank_op",
    "cross_size_op",
    "grouped_allreduce",
    "handle_average_backwards_compatibility",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "size_op",
]


_UNNAMED = "(without a name)"


@tf_library.outside_autograph
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduces a tensor over all ranks.

    Differentiable; tfring.gradients says which loss the gradient belongs to.

    Args:
        tensor: tensor, variable, array or number of any shape, which is the same on every rank:
            float16, bfloat16, float32, float64, int8, uint8, int32 or int64. Or tf.IndexedSlices,
            with Average and Sum only: duplicate indices are summed, then all ranks' values and
            indices are gathered.
        average: deprecated, use op: True is Average, False is Sum.
        device_dense: device for the reduction of a dense tensor, "" for TensorFlow's choice.
        device_sparse: likewise for tf.IndexedSlices.
        compression: what is done to a dense tensor on the wire.
        op: Average (the default), Sum, Min, Max or Product. Average is the sum divided by the
            number of ranks: a sum of integers wraps around as it does in NumPy.
        prescale_factor: multiplies every rank's tensor before the reduction.
        postscale_factor: multiplies the result.
        name: the same on every rank; made up by default.
        process_set: the ranks that take part.
        ignore_name_scope: use `name` as it is, without the current name scope.

    Returns:
        A tensor of the same shape and dtype, or tf.IndexedSlices.

    Raises:
        ValueError: op and average contradict each other, op or the process set is unknown.
        TypeError: the dtype is not supported.
        NotImplementedError: op is Adasum, or tf.IndexedSlices with Min, Max, Product or a factor.
        tf.errors.FailedPreconditionError: tfring is not initialized, or ranks disagree on dtype,
            shape, op or factors.
        tf.errors.UnavailableError: a rank was lost.
    """
    op = _checked_op(op, average)
    process_set_id = checked_id(process_set)
    _require_init("allreduce")
    factors = (prescale_factor, postscale_factor)
    if isinstance(tensor, tf.IndexedSlices):
        _check_sparse(tensor, name, op, *factors)
        full_name = names.collective_name("allreduce", name, ignore_name_scope)
        with _device(device_sparse):
            return _sparse_allreduce(tensor, full_name, op, process_set_id)
    with _device(device_dense):
        wires = _compress([tensor], name, compression)
        full_name = names.collective_name("allreduce", name, ignore_name_scope)
        return _dense_allreduce(
            wires, full_name, op, compression, *factors, process_set_id, group=False
        )[0]


@tf_library.outside_autograph
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Reduces a list of tensors over all ranks, those of one dtype as one collective.

    Args:
        tensors: what allreduce takes; dtypes may differ, tf.IndexedSlices may be among them.
        average: as in allreduce, like all the other parameters.
        device_dense: as in allreduce.
        device_sparse: as in allreduce.
        compression: as in allreduce.
        op: as in allreduce.
        prescale_factor: as in allreduce.
        postscale_factor: as in allreduce.
        process_set: as in allreduce.
        ignore_name_scope: as in allreduce.
        name: as in allreduce; names the group.

    Returns:
        The results in the order of `tensors`.

    Raises:
        Exception: what allreduce raises.
    """
    op = _checked_op(op, average)
    process_set_id = checked_id(process_set)
    _require_init("grouped_allreduce")
    if not tensors:
        return []
    factors = (prescale_factor, postscale_factor)
    results: list[Any] = [None] * len(tensors)
    dense = [i for i, t in enumerate(tensors) if not isinstance(t, tf.IndexedSlices)]
    for tensor in tensors:
        if isinstance(tensor, tf.IndexedSlices):
            _check_sparse(tensor, name, op, *factors)
    with _device(device_dense):
        wires = _compress([tensors[i] for i in dense], name, compression)
        full_name = names.collective_name("grouped_allreduce", name, ignore_name_scope)
        reduced = _dense_allreduce(
            wires, full_name, op, compression, *factors, process_set_id, group=True
        )
    for i, result in zip(dense, reduced, strict=True):
        results[i] = result
    with _device(device_sparse):
        for i, tensor in enumerate(tensors):
            if isinstance(tensor, tf.IndexedSlices):
                results[i] = _sparse_allreduce(tensor, f"{full_name}.{i}", op, process_set_id)
    return results


@tf_library.outside_autograph
def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Concatenates the ranks' tensors along the first dimension, in order of rank.

    Differentiable; tfring.gradients says which loss the gradient belongs to.

    Args:
        tensor: tensor, variable or array with at least one dimension, of any number or bool dtype.
            The first dimension may differ between ranks and may be 0, the others may not differ.
        name: the same on every rank; made up by default.
        ignore_name_scope: use `name` as it is, without the current name scope.
        process_set: the ranks that take part.

    Returns:
        A tensor whose first dimension is the sum over the ranks.

    Raises:
        ValueError: the process set is unknown, or the tensor is a scalar.
        TypeError: the dtype is not supported.
        tf.errors.FailedPreconditionError: tfring is not initialized, or ranks disagree on dtype or
            shape.
        tf.errors.UnavailableError: a rank was lost.
    """
    process_set_id = checked_id(process_set)
    _require_init("allgather")
    value = _checked_tensor(tensor, name, tf_library.MOVABLE, "allgather")
    if value.shape.rank == 0:
        raise ValueError(
            "an allgather concatenates along the first dimension, but tensor "
            f"{name or _UNNAMED} is a scalar: reshape it to [1]"
        )
    full_name = names.collective_name("allgather", name, ignore_name_scope)
    return tf_library.allgather_op(value, name=full_name, process_set_id=process_set_id)


@tf_library.outside_autograph
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Gives every rank the root's tensor.

    Differentiable; tfring.gradients says which loss the gradient belongs to.

    Args:
        tensor: tensor, variable, array or number of any number or bool dtype; on the other ranks
            only shape and dtype matter, and must be the root's.
        root_rank: whose tensor it is.
        name: the same on every rank; made up by default.
        ignore_name_scope: use `name` as it is, without the current name scope.
        process_set: the ranks that take part.

    Returns:
        A tensor of the same shape and dtype.

    Raises:
        ValueError: the process set is unknown.
        TypeError: the dtype is not supported.
        tf.errors.InvalidArgumentError: there is no such rank.
        tf.errors.FailedPreconditionError: tfring is not initialized, or ranks disagree on dtype,
            shape or root.
        tf.errors.UnavailableError: a rank was lost.
    """
    process_set_id = checked_id(process_set)
    _require_init("broadcast")
    root_rank = int(root_rank)
    value = _checked_tensor(tensor, name, tf_library.MOVABLE, "broadcast")
    full_name = names.collective_name("broadcast", name, ignore_name_scope)
    return tf_library.broadcast_op(
        [value],
        name=full_name,
        root_rank=root_rank,
        process_set_id=process_set_id,
    )[0]


@tf_library.outside_autograph
def bucket_allreduce(
    tensors: Sequence[Any],
    *,
    name: str,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    layout_hash: int = 0,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Reduces one bucket of gradients as one op; for the tape and the optimizer.

    Args:
        tensors: tensors of one dtype.
        name: the whole name; no scope is added.
        op: Average, Sum, Min, Max or Product.
        prescale_factor: multiplies before the reduction.
        postscale_factor: multiplies the result.
        layout_hash: of the way in which all gradients were cut into buckets; ranks whose hashes
            differ get FailedPreconditionError.
        process_set: the ranks that take part.

    Returns:
        The reduced tensors.

    Raises:
        Exception: what allreduce raises.
    """
    return tf_library.allreduce_op(
        [tf.convert_to_tensor(tensor) for tensor in tensors],
        name=name,
        op=_checked_op(op, None),
        prescale=prescale_factor,
        postscale=postscale_factor,
        process_set_id=checked_id(process_set),
        layout_hash=layout_hash,
        group=True,
    )


@tf_library.outside_autograph
def bucket_broadcast(
    tensors: Sequence[Any],
    *,
    name: str,
    root_rank: int,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Broadcasts tensors of one dtype as one op under exactly this name; returns the root's."""
    return tf_library.broadcast_op(
        [tf.convert_to_tensor(tensor) for tensor in tensors],
        name=name,
        root_rank=int(root_rank),
        process_set_id=checked_id(process_set),
    )


def handle_average_backwards_compatibility(op: int | None, average: bool | None) -> int:
    """Joins the deprecated `average` with `op`.

    Raises:
        ValueError: both are given.
    """
    if op is not None:
        if average is not None:
            raise ValueError("give op or average, not both; average is deprecated")
        return op
    if average is None:
        return Average
    warnings.warn(
        "the parameter average is deprecated: use op=tfring.Average or op=tfring.Sum",
        DeprecationWarning,
        stacklevel=4,
    )
    return Average if average else Sum


def _checked_op(op: int | None, average: bool | None) -> int:
    chosen = int(handle_average_backwards_compatibility(op, average))
    reduce_ops.name_of(chosen)
    if chosen == Adasum:
        raise NotImplementedError("op=Adasum is not available in this version of tfring")
    return chosen


def _require_init(what: str) -> None:
    if core.is_initialized():
        return
    try:
        core.rank()  # says what is in the way: no init yet, or a forked child
    except core.CoreError as error:
        raise tf.errors.FailedPreconditionError(None, None, f"{what}: {error.message}") from None


# All that can be wrong with a call on this rank alone is found before its name is made up: a call
# that raises here uses up no count, and the next one meets its like on the other ranks.


def _checked_tensor(tensor: Any, name: str | None, supported: Sequence[str], kind: str) -> Any:
    value = tf.convert_to_tensor(tensor)
    tf_library.check_dtype(value, name or _UNNAMED, supported, kind)
    tf_library.refuse_xla(name or _UNNAMED)
    return value


def _compress(tensors: Sequence[Any], name: str | None, compression: Any) -> list[tuple[Any, Any]]:
    """What goes over the wire for each tensor, and the compression's context."""
    pairs = [compression.compress(tf.convert_to_tensor(tensor)) for tensor in tensors]
    return [
        (_checked_tensor(wire, name, tf_library.REDUCIBLE, "allreduce"), context)
        for wire, context in pairs
    ]


def _check_sparse(
    slices: Any, name: str | None, op: int, prescale: float, postscale: float
) -> None:
    label = name or _UNNAMED
    if op not in (Average, Sum):
        raise NotImplementedError(
            f"tensor {label}: tf.IndexedSlices can be reduced with Average and Sum, not with "
            f"{reduce_ops.name_of(op)}; make it dense with tf.convert_to_tensor"
        )
    if prescale != 1.0 or postscale != 1.0:
        raise NotImplementedError(
            f"tensor {label}: scale factors are not available for tf.IndexedSlices; make it dense "
            "with tf.convert_to_tensor"
        )
    _checked_tensor(slices.values, name, tf_library.MOVABLE, "allgather")


def _dense_allreduce(
    wires: list[tuple[Any, Any]],
    name: str,
    op: int,
    compression: Any,
    prescale: float,
    postscale: float,
    process_set_id: int,
    *,
    group: bool,
) -> list[Any]:
    """Builds one op per dtype.

    The first keeps the plain name, so that ranks which disagree about dtypes meet there and find
    out.
    """
    by_dtype: dict[Any, list[int]] = {}
    for i, (wire, _) in enumerate(wires):
        by_dtype.setdefault(wire.dtype, []).append(i)
    results: list[Any] = [None] * len(wires)
    for number, (dtype, positions) in enumerate(by_dtype.items()):
        reduced = tf_library.allreduce_op(
            [wires[i][0] for i in positions],
            name=f"{name}.{dtype.name}" if number else name,
            op=op,
            prescale=prescale,
            postscale=postscale,
            process_set_id=process_set_id,
            group=group,
        )
        for i, wire in zip(positions, reduced, strict=True):
            results[i] = compression.decompress(wire, wires[i][1])
    return results


def _sparse_allreduce(slices: Any, name: str, op: int, process_set_id: int) -> Any:
    distinct, position = tf.unique(slices.indices)
    summed = tf.math.unsorted_segment_sum(slices.values, position, tf.size(distinct))
    values = tf_library.allgather_op(summed, name=f"{name}.values", process_set_id=process_set_id)
    indices = tf_library.allgather_op(
        distinct, name=f"{name}.indices", process_set_id=process_set_id
    )
    if op == Average:
        size = tf.cast(size_op(process_set_id), values.dtype)
        values = values / size if values.dtype.is_floating else values // size
    return tf.IndexedSlices(values, indices, slices.dense_shape)


@contextlib.contextmanager
def _device(name: str) -> Iterator[None]:
    if not name:
        yield
        return
    with tf.device(name):
        yield
