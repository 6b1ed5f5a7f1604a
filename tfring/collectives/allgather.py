"""allgather: the ranks' tensors, one after another, on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfring.ops import arguments, builders, library, names
from tfring.process_sets import ProcessSet, checked_id, global_process_set


@library.outside_autograph
def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Concatenates the ranks' tensors along the first dimension, in order of rank.

    Differentiable; tfring.ops.gradients says which loss the gradient belongs to.

    Args:
        tensor: tensor, variable or array with at least one dimension, of any number or bool dtype.
            The first dimension may differ between ranks and may be 0, the others may not differ.
        name: the same on every rank; made up by default.
        ignore_name_scope: use `name` as it is, without the current name scope.
        process_set: the ranks that take part.

    Returns:
        A tensor whose first dimension is the sum over the ranks.

    Raises:
        ValueError: the process set is unknown.
        TypeError: the dtype is not supported.
        tf.errors.InvalidArgumentError: on every rank: some rank's tensor is a scalar.
        tf.errors.FailedPreconditionError: tfring is not initialized, or ranks disagree on dtype or
            shape.
        tf.errors.UnavailableError: a rank was lost.
    """
    process_set_id = checked_id(process_set)
    arguments.require_init("allgather")
    value = arguments.checked_tensor(tensor, name, library.MOVABLE, "allgather")
    full_name = names.collective_name("allgather", name, ignore_name_scope, process_set)
    return builders.allgather_op([value], name=full_name, process_set_id=process_set_id)[0]


@library.outside_autograph
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Gathers a list of tensors from all ranks, those of one dtype as one collective.

    The parameters are those of allgather, for all tensors, whose dtypes and numbers of rows may
    differ. `name` is the name of the group.

    Returns:
        The results in the order of `tensors`.

    Raises:
        Exception: what allgather raises.
    """
    process_set_id = checked_id(process_set)
    arguments.require_init("grouped_allgather")
    values = [arguments.checked_tensor(t, name, library.MOVABLE, "allgather") for t in tensors]
    if not values:
        return []
    full_name = names.collective_name("grouped_allgather", name, ignore_name_scope, process_set)
    results: list[Any] = [None] * len(values)
    for op_name, positions in arguments.by_dtype(values, full_name):
        gathered = builders.allgather_op(
            [values[i] for i in positions], name=op_name, process_set_id=process_set_id, group=True
        )
        for i, result in zip(positions, gathered, strict=True):
            results[i] = result
    return results
