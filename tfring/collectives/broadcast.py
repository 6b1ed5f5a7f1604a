"""broadcast: every rank gets one rank's tensor."""

from __future__ import annotations

from typing import Any

from tfring.ops import arguments, builders, library, names
from tfring.runtime.process_sets import ProcessSet, global_process_set


@library.outside_autograph
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    *,
    gradient: str = "sum",
) -> Any:
    """Gives every rank the root's tensor.

    Differentiable. `gradient` says which loss the gradient belongs to: see allgather.

    Args:
        tensor: tensor, variable, array or number of any number or bool dtype; on the other ranks
            only shape and dtype matter, and must be the root's.
        root_rank: the sender; a world rank, also within a process set.
        name: the same on every rank; made up by default.
        ignore_name_scope: use `name` as it is, without the current name scope.
        process_set: the ranks that take part.
        gradient: "sum", "mean" or "horovod", as in allgather.

    Returns:
        A tensor of the same shape and dtype.

    Raises:
        ValueError: the process set or the gradient is unknown.
        TypeError: the dtype is not supported.
        tf.errors.InvalidArgumentError: no such rank.
        tf.errors.FailedPreconditionError: tfring is not initialized, or ranks disagree on dtype,
            shape or root.
        tf.errors.UnavailableError: a rank was lost.
    """
    gradient = arguments.checked_gradient(gradient)
    process_set_id = arguments.begin("broadcast", process_set)
    root_rank = int(root_rank)
    value = arguments.checked_tensor(tensor, name, library.MOVABLE, "broadcast")
    full_name = names.collective_name("broadcast", name, ignore_name_scope, process_set_id)
    return builders.broadcast_op(
        [value],
        name=full_name,
        root_rank=root_rank,
        process_set_id=process_set_id,
        gradient=gradient,
    )[0]
