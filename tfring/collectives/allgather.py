"""allgather: every rank gets the ranks' tensors, concatenated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfring.ops import arguments, builders, library, names
from tfring.runtime.process_sets import ProcessSet, global_process_set


@library.outside_autograph
def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    *,
    gradient: str = "sum",
) -> Any:
    """Concatenates the ranks' tensors along the first dimension, in order of rank.

    Differentiable. With the loss L of each rank, the gradient that this rank's tensor gets is:

        gradient=   of the tensor                 use it where
        "sum"       the sum of all ranks' dL/dx   a tape or optimizer averages
        "mean"      1/N of that sum               nothing averages, all have one L
        "horovod"   1/N of that sum               as in Horovod; the default under `import horovod`

    With "sum", the default, and a DistributedOptimizer or DistributedGradientTape, N ranks get
    the gradients of one process, whether a rank's loss compares its own rows with all rows or
    covers all rows. For other collectives "horovod" is this factor of that sum: 1/N for broadcast,
    1 for alltoall, N for reducescatter.

    Args:
        tensor: tensor, variable or array with at least one dimension, of any number or bool dtype.
            The first dimension may differ between ranks and may be 0, the others may not differ.
        name: the same on every rank; made up by default.
        ignore_name_scope: use `name` as it is, without the current name scope.
        process_set: the ranks that take part.
        gradient: "sum", "mean" or "horovod", as above.

    Returns:
        A tensor whose first dimension is the sum over the ranks.

    Raises:
        ValueError: the process set or the gradient is unknown.
        TypeError: the dtype is not supported.
        tf.errors.InvalidArgumentError: on every rank: some rank's tensor is a scalar.
        tf.errors.FailedPreconditionError: tfring is not initialized, or ranks disagree on dtype or
            shape.
        tf.errors.UnavailableError: a rank was lost.
    """
    gradient = arguments.checked_gradient(gradient)
    process_set_id = arguments.begin("allgather", process_set)
    value = arguments.checked_tensor(tensor, name, library.MOVABLE, "allgather")
    full_name = names.collective_name("allgather", name, ignore_name_scope, process_set_id)
    return builders.allgather_op(
        [value], name=full_name, process_set_id=process_set_id, gradient=gradient
    )[0]


@library.outside_autograph
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    *,
    gradient: str = "sum",
) -> list[Any]:
    """Gathers a list of tensors from all ranks; tensors of one dtype share one collective.

    The parameters are those of allgather, for all tensors. Their dtypes and numbers of rows may
    differ. `name` is the name of the group.

    Returns:
        The results in the order of `tensors`.

    Raises:
        Exception: what allgather raises.
    """
    gradient = arguments.checked_gradient(gradient)
    process_set_id = arguments.begin("grouped_allgather", process_set)
    values = [arguments.checked_tensor(t, name, library.MOVABLE, "allgather") for t in tensors]
    if not values:
        return []
    full_name = names.collective_name("grouped_allgather", name, ignore_name_scope, process_set_id)
    return arguments.build_by_dtype(
        values,
        full_name,
        lambda part, part_name: builders.allgather_op(
            part, name=part_name, process_set_id=process_set_id, group=True, gradient=gradient
        ),
    )
