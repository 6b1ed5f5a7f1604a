"""alltoall: every rank sends rows to every rank."""

from __future__ import annotations

from typing import Any

from tfring.ops import arguments, builders, library, names
from tfring.runtime.process_sets import ProcessSet, global_process_set


@library.outside_autograph
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    *,
    gradient: str = "sum",
) -> Any:
    """Sends rows to every rank and receives rows from every rank.

    Differentiable. `gradient` says which loss the gradient belongs to: see allgather.

    Args:
        tensor: tensor, variable or array with at least one dimension, of any number or bool dtype:
            the rows for the first rank, then those for the second, and so on. All dimensions but
            the first must be the same on every rank.
        splits: vector of how many rows go to each rank of the process set, int32 or int64; each
            rank has its own. None for equal parts.
        name: the same on every rank; made up by default.
        ignore_name_scope: use `name` as it is, without the current name scope.
        process_set: the ranks that take part.
        gradient: "sum", "mean" or "horovod", as in allgather.

    Returns:
        The rows from the first rank, then those from the second, and so on. With `splits` a pair:
        these rows, and a vector of how many came from each rank, of the dtype of `splits`.

    Raises:
        ValueError: the process set or the gradient is unknown.
        TypeError: a dtype is not supported.
        tf.errors.InvalidArgumentError: on every rank: some rank's tensor is a scalar; its splits
            do not give a number of rows for each rank or do not add up to its rows; or, without
            splits, its rows cannot be cut into equal parts.
        tf.errors.FailedPreconditionError: tfring is not initialized, ranks disagree on dtype or
            row shape, or a rank has joined.
        tf.errors.UnavailableError: a rank was lost.
    """
    gradient = arguments.checked_gradient(gradient)
    process_set_id = arguments.begin("alltoall", process_set)
    arguments.refuse_sparse([tensor], name, "alltoall")
    value = arguments.checked_tensor(tensor, name, library.MOVABLE, "alltoall")
    sizes = arguments.checked_splits(splits, name)
    full_name = names.collective_name("alltoall", name, ignore_name_scope, process_set_id)
    received, received_splits = builders.alltoall_op(
        value, sizes, name=full_name, process_set_id=process_set_id, gradient=gradient
    )
    return received if splits is None else (received, received_splits)
