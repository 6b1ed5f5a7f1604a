"""allreduce: the sum, mean or another reduction of the ranks' tensors, on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfring.collectives import buckets
from tfring.collectives.compression import Compression
from tfring.collectives.sparse import check_sparse, sparse_allreduce
from tfring.ops import arguments, builders, library, names
from tfring.ops.reduce_ops import Average
from tfring.process_sets import ProcessSet, checked_id, global_process_set


@library.outside_autograph
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

    Differentiable; tfring.ops.gradients says which loss the gradient belongs to.

    Args:
        tensor: tensor, variable, array or number of any shape, which is the same on every rank:
            float16, bfloat16, float32, float64, int8, uint8, int32 or int64. Or tf.IndexedSlices,
            with Average and Sum only: duplicate indices are summed, then all ranks' values and
            indices are gathered.
        average: deprecated, use op: True is Average, False is Sum.
        device_dense: device for the reduction of a dense tensor, "" for TensorFlow's choice.
        device_sparse: likewise for tf.IndexedSlices.
        compression: what is done to a dense tensor on the wire.
        op: Average (the default), Sum, Min, Max, Product or Adasum. Average is the sum divided by
            the number of ranks that took part (see join): a sum of integers wraps around as it does
            in NumPy. Adasum, for floating dtypes, counts what the tensors have in common once: of
            two it makes (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b, where a.b is the dot product
            of the whole tensors, so orthogonal ones are added and equal ones averaged; a tensor of
            zeros changes nothing. Any number of ranks is combined along a balanced binary tree,
            neighbours first (Maleki et al., Scaling Distributed Training with Adaptive Summation,
            https://arxiv.org/abs/2006.02924).
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
        NotImplementedError: tf.IndexedSlices with Adasum, Min, Max, Product or a factor.
        tf.errors.FailedPreconditionError: tfring is not initialized, or ranks disagree on dtype,
            shape, op or factors.
        tf.errors.UnavailableError: a rank was lost.
    """
    op = arguments.checked_op(op, average)
    process_set_id = checked_id(process_set)
    arguments.require_init("allreduce")
    factors = (prescale_factor, postscale_factor)
    if isinstance(tensor, tf.IndexedSlices):
        check_sparse(tensor, name, op, *factors)
        full_name = names.collective_name("allreduce", name, ignore_name_scope, process_set)
        with arguments.on_device(device_sparse):
            return sparse_allreduce(tensor, full_name, op, process_set_id)
    with arguments.on_device(device_dense):
        wires = arguments.compress([tensor], name, compression, "allreduce", op)
        full_name = names.collective_name("allreduce", name, ignore_name_scope, process_set)
        return _dense_allreduce(
            wires, full_name, op, compression, *factors, process_set_id, group=False
        )[0]


@library.outside_autograph
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
    op = arguments.checked_op(op, average)
    process_set_id = checked_id(process_set)
    arguments.require_init("grouped_allreduce")
    if not tensors:
        return []
    factors = (prescale_factor, postscale_factor)
    results: list[Any] = [None] * len(tensors)
    dense = [i for i, t in enumerate(tensors) if not isinstance(t, tf.IndexedSlices)]
    for tensor in tensors:
        if isinstance(tensor, tf.IndexedSlices):
            check_sparse(tensor, name, op, *factors)
    with arguments.on_device(device_dense):
        wires = arguments.compress([tensors[i] for i in dense], name, compression, "allreduce", op)
        full_name = names.collective_name("grouped_allreduce", name, ignore_name_scope, process_set)
        reduced = _dense_allreduce(
            wires,
            full_name,
            op,
            compression,
            *factors,
            process_set_id,
            group=True,
            sparse=[i for i in range(len(tensors)) if i not in dense],
        )
    for i, result in zip(dense, reduced, strict=True):
        results[i] = result
    with arguments.on_device(device_sparse), tf.control_dependencies(reduced[:1]):
        for i, tensor in enumerate(tensors):
            if isinstance(tensor, tf.IndexedSlices):
                # The first collective has the plain name on every rank, whatever its list.
                own_name = f"{full_name}.{i}" if dense or i else full_name
                results[i] = sparse_allreduce(tensor, own_name, op, process_set_id)
    return results


@library.outside_autograph
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
        op: Average, Sum, Min, Max, Product or Adasum.
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
    return builders.allreduce_op(
        [tf.convert_to_tensor(tensor) for tensor in tensors],
        name=name,
        op=arguments.checked_op(op),
        prescale=prescale_factor,
        postscale=postscale_factor,
        process_set_id=checked_id(process_set),
        layout_hash=layout_hash,
        group=True,
    )


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
    sparse: Sequence[int] = (),
) -> list[Any]:
    """Builds one op per dtype; `sparse` are the positions of what follows them."""
    results: list[Any] = [None] * len(wires)
    parts = arguments.by_dtype([wire for wire, _ in wires], name)
    # The first op says what else there will be: nobody waits for what other ranks do not have.
    later = [part_name.removeprefix(name) for part_name, _ in parts[1:]]
    layout = buckets.number_of(f"{later}{list(sparse)}") if later or sparse else 0
    met: list[Any] = []
    for op_name, positions in parts:
        with tf.control_dependencies(met):
            reduced = builders.allreduce_op(
                [wires[i][0] for i in positions],
                name=op_name,
                op=op,
                prescale=prescale,
                postscale=postscale,
                process_set_id=process_set_id,
                layout_hash=layout,
                group=group,
            )
        met = met or reduced[:1]
        for i, wire in zip(positions, reduced, strict=True):
            results[i] = compression.decompress(wire, wires[i][1])
    return results
