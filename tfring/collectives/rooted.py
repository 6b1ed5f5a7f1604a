"""Collectives with a root: reduce, gather and scatter.

Horovod has none of them. To differentiate one, every rank has to use its own result in its loss,
even zeros and empty tensors (tf.reduce_sum(result) is enough). The gradient is a collective, and
TensorFlow leaves out what a loss does not depend on.
"""

from __future__ import annotations

from typing import Any

from tfring.ops import arguments, builders, library, names
from tfring.ops.reduce_ops import Average
from tfring.runtime.process_sets import ProcessSet, global_process_set


@library.outside_autograph
def reduce(
    tensor: Any,
    root_rank: int,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduces a tensor over all ranks, for the root only.

    Differentiable; tfring.ops.gradients says which loss the gradient belongs to.

    Args:
        tensor: as in allreduce.
        root_rank: gets the result; a world rank, also within a process set.
        op: Average, Sum, Min, Max or Product.
        prescale_factor: multiplies every rank's tensor before the reduction.
        postscale_factor: multiplies the result.
        name: the same on every rank; made up by default.
        process_set: the ranks that take part.
        ignore_name_scope: use `name` as it is, without the current name scope.

    Returns:
        On the root what allreduce returns; zeros of that shape on the others.

    Raises:
        ValueError: op or the process set is unknown.
        TypeError: the dtype is not supported.
        NotImplementedError: tf.IndexedSlices, or op is Adasum.
        tf.errors.InvalidArgumentError: on every rank: the root is not in the process set.
        tf.errors.FailedPreconditionError: tfring is not initialized, ranks disagree on dtype,
            shape, op, factors or root, or the root has joined.
        tf.errors.UnavailableError: a rank was lost.
    """
    op = arguments.checked_elementwise_op(op, "reduce")
    process_set_id = arguments.begin("reduce", process_set)
    root_rank = int(root_rank)
    arguments.refuse_sparse([tensor], name, "reduce")
    value = arguments.checked_tensor(tensor, name, library.REDUCIBLE, "reduce")
    return builders.reduce_op(
        [value],
        name=names.collective_name("reduce", name, ignore_name_scope, process_set_id),
        root_rank=root_rank,
        op=op,
        prescale=prescale_factor,
        postscale=postscale_factor,
        process_set_id=process_set_id,
    )[0]


@library.outside_autograph
def gather(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Concatenates the ranks' tensors along the first dimension, for the root only.

    Differentiable; tfring.ops.gradients says which loss the gradient belongs to. `tensor` is as in
    allgather, the other parameters are as in reduce.

    Returns:
        On the root what allgather returns; no rows (first dimension 0) on the others.

    Raises:
        ValueError: the process set is unknown.
        TypeError: the dtype is not supported.
        NotImplementedError: tf.IndexedSlices.
        tf.errors.InvalidArgumentError: on every rank: the root is not in the process set, or
            some rank's tensor is a scalar.
        tf.errors.FailedPreconditionError: tfring is not initialized, ranks disagree on dtype, row
            shape or root, or the root has joined.
        tf.errors.UnavailableError: a rank was lost.
    """
    process_set_id = arguments.begin("gather", process_set)
    root_rank = int(root_rank)
    arguments.refuse_sparse([tensor], name, "gather")
    value = arguments.checked_tensor(tensor, name, library.MOVABLE, "gather")
    return builders.gather_op(
        value,
        name=names.collective_name("gather", name, ignore_name_scope, process_set_id),
        root_rank=root_rank,
        process_set_id=process_set_id,
    )


@library.outside_autograph
def scatter(
    tensor: Any,
    root_rank: int,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Gives each rank its part of the root's rows.

    Differentiable; tfring.ops.gradients says which loss the gradient belongs to.

    Args:
        tensor: on the root a tensor, variable or array with at least one dimension, of any number
            or bool dtype: the rows for the first rank, then those for the second, and so on. On the
            others a tensor of this dtype with rows of this shape; any number of rows, 0 is enough.
        root_rank: the sender; a world rank, also within a process set.
        splits: on the root a vector of how many rows go to each rank of the process set, int32 or
            int64; None for equal parts. Nothing on the others.
        name: the same on every rank; made up by default.
        process_set: the ranks that take part.
        ignore_name_scope: use `name` as it is, without the current name scope.

    Returns:
        This rank's rows.

    Raises:
        ValueError: the process set is unknown.
        TypeError: a dtype is not supported.
        NotImplementedError: tf.IndexedSlices.
        tf.errors.InvalidArgumentError: on every rank: the root is not in the process set, its
            rows cannot be cut in this way, or some rank's tensor is a scalar.
        tf.errors.FailedPreconditionError: tfring is not initialized, ranks disagree on dtype, row
            shape or root, or a rank has joined.
        tf.errors.UnavailableError: a rank was lost.
    """
    process_set_id = arguments.begin("scatter", process_set)
    root_rank = int(root_rank)
    arguments.refuse_sparse([tensor], name, "scatter")
    value = arguments.checked_tensor(tensor, name, library.MOVABLE, "scatter")
    sizes = arguments.checked_splits(splits, name)
    return builders.scatter_op(
        value,
        sizes,
        name=names.collective_name("scatter", name, ignore_name_scope, process_set_id),
        root_rank=root_rank,
        process_set_id=process_set_id,
    )
