"""allreduce: every rank gets the sum, mean or another reduction of the ranks' tensors.

Adasum counts the common part of two tensors once. It makes
(1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b, where a.b is the dot product of the whole tensors. So
orthogonal tensors are added and equal ones averaged; a tensor of zeros changes nothing. A balanced
binary tree combines any number of ranks, neighbours first (Maleki et al., Scaling Distributed
Training with Adaptive Summation, https://arxiv.org/abs/2006.02924).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfring.collectives import buckets, sparse
from tfring.collectives.compression import Compression
from tfring.ops import arguments, builders, library, names
from tfring.ops.reduce_ops import Average
from tfring.runtime.process_sets import ProcessSet, checked_id, global_process_set

_largest = [0]  # elements of the largest tensor in the program's own allreduce calls


def largest() -> int:
    """Returns the number of elements of the largest tensor that the program itself has reduced.

    Counts allreduce and grouped_allreduce; an unknown shape counts as larger than all.
    """
    return _largest[0]


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
            with Average and Sum only: values and indices of all ranks are gathered, and those of
            one index summed, so that every index of the result occurs once.
        average: deprecated, use op: True is Average, False is Sum.
        device_dense: device for the reduction of a dense tensor, "" for TensorFlow's choice.
        device_sparse: likewise for tf.IndexedSlices.
        compression: how a dense tensor is encoded for sending.
        op: Average (the default), Sum, Min, Max, Product or Adasum. Average is the sum divided by
            the number of ranks that took part (see join): a sum of integers wraps around as it does
            in NumPy. Adasum is for floating dtypes; tfring.collectives.allreduce describes it.
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
    process_set_id = arguments.begin("allreduce", process_set)
    _note(tensor)
    if isinstance(tensor, tf.IndexedSlices):
        sparse.check_allreduce(tensor, name, op, prescale_factor, postscale_factor)
        full_name = names.collective_name("allreduce", name, ignore_name_scope, process_set_id)
        reduction = sparse.SparseReduction(op, process_set_id, device=device_sparse)
        return reduction.reduce([tensor], full_name)[0]
    compressed = compression is not Compression.none
    with arguments.on_device(device_dense):
        if compressed:
            tensor, context = compression.compress(tf.convert_to_tensor(tensor))
        sent = arguments.checked_reducible(tensor, name, "allreduce", op)
        [reduced] = builders.allreduce_op(
            [sent],
            name=names.collective_name("allreduce", name, ignore_name_scope, process_set_id),
            op=op,
            prescale=prescale_factor,
            postscale=postscale_factor,
            process_set_id=process_set_id,
        )
        return compression.decompress(reduced, context) if compressed else reduced


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
    """Reduces a list of tensors over all ranks; tensors of one dtype share one collective.

    The parameters are those of allreduce, for all tensors. Their shapes and dtypes may differ, and
    tf.IndexedSlices may be among them. `name` is the name of the group.

    Returns:
        The results in the order of `tensors`.

    Raises:
        Exception: what allreduce raises.
    """
    op = arguments.checked_op(op, average)
    process_set_id = arguments.begin("grouped_allreduce", process_set)
    if not tensors:
        return []
    for tensor in tensors:
        _note(tensor)
        if isinstance(tensor, tf.IndexedSlices):
            sparse.check_allreduce(tensor, name, op, prescale_factor, postscale_factor)
    sparse_at = [i for i, t in enumerate(tensors) if isinstance(t, tf.IndexedSlices)]
    dense_at = [i for i in range(len(tensors)) if i not in sparse_at]
    first: list[Any] = []  # the first result; it comes only if all ranks have the same lists

    with arguments.on_device(device_dense):
        wires = arguments.compress(
            [tensors[i] for i in dense_at], name, compression, "allreduce", op
        )
        full_name = names.collective_name(
            "grouped_allreduce", name, ignore_name_scope, process_set_id
        )
        sent = [wire for wire, _ in wires]
        layout = _layout_hash(sent, full_name, sparse_at)

        def reduce(part: list[Any], part_name: str) -> list[Any]:
            with tf.control_dependencies(first[:1]):
                reduced = builders.allreduce_op(
                    part,
                    name=part_name,
                    op=op,
                    prescale=prescale_factor,
                    postscale=postscale_factor,
                    process_set_id=process_set_id,
                    layout_hash=layout,
                    group=True,
                )
            first.extend(reduced)
            return reduced

        dense = arguments.build_by_dtype(sent, full_name, reduce)
        dense = [
            compression.decompress(each, context)
            for each, (_, context) in zip(dense, wires, strict=True)
        ]
    results = dict(zip(dense_at, dense, strict=True))
    if sparse_at:
        # The first collective has the plain name on every rank, whatever its list.
        sparse_name = f"{full_name}.sparse" if dense_at else full_name
        with tf.control_dependencies(first[:1]):
            reduction = sparse.SparseReduction(op, process_set_id, device=device_sparse)
            slices = reduction.reduce([tensors[i] for i in sparse_at], sparse_name)
        results.update(zip(sparse_at, slices, strict=True))
    return [results[i] for i in range(len(tensors))]


@library.outside_autograph
def bucket_allreduce(
    tensors: Sequence[Any],
    *,
    name: str,
    op: int = Average,
    layout_hash: int = 0,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Reduces tensors of one dtype as one op, for tfring's own code; raises what allreduce raises.

    Args:
        tensors: the tensors.
        name: the whole name; no scope is added.
        op: Average, Sum, Min, Max, Product or Adasum.
        layout_hash: if the ranks' hashes differ, all get FailedPreconditionError.
        process_set: the ranks that take part.
    """
    return builders.allreduce_op(
        [arguments.checked_tensor(t, name, library.REDUCIBLE, "allreduce") for t in tensors],
        name=name,
        op=op,
        process_set_id=checked_id(process_set),
        layout_hash=layout_hash,
        group=True,
    )


def _layout_hash(tensors: Sequence[Any], name: str, sparse_at: list[int]) -> int:
    """Returns a hash of the ops after the first, and of the positions of tf.IndexedSlices.

    Ranks whose lists differ get an error in the first op. So none waits in a collective that the
    others do not make.
    """
    later = [part.removeprefix(name) for part, _ in arguments.by_dtype(tensors, name)[1:]]
    return buckets.text_hash(f"{later}{sparse_at}") if later or sparse_at else 0


def _note(tensor: Any) -> None:
    shape = getattr(tensor, "shape", None)
    elements = tf.TensorShape(shape).num_elements() if shape is not None else 0
    _largest[0] = max(_largest[0], sys.maxsize if elements is None else elements)
