"""replicated: a value that is equal on all ranks; its gradient is averaged."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfring.ops import arguments, builders, gradients, library, names
from tfring.ops.reduce_ops import Average
from tfring.runtime.process_sets import ProcessSet, global_process_set


@library.outside_autograph
def replicated(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns a value unchanged; its gradient becomes the average over the ranks.

    For libraries that make their own tape (natural gradients, L-BFGS): compute the loss from
    `hvd.replicated(variable)` instead of the variable. Every rank then gets the gradient that
    DistributedGradientTape would give. All ranks must differentiate the same calls.

    Args:
        tensor: tensor or variable of a float or complex dtype, with the same value on all ranks.
        name: of the gradient's collective, the same on every rank; made up by default.
        ignore_name_scope: use `name` as it is, without the current name scope.
        process_set: the ranks that take part.

    Returns:
        A tensor with the same value. A gradient that is tf.IndexedSlices becomes dense.

    Raises:
        ValueError: the process set is unknown.
        tf.errors.FailedPreconditionError: tfring is not initialized; or, when the gradient is
            computed, ranks disagree on dtype or shape.
    """
    process_set_id = arguments.begin("replicated", process_set)
    full_name = names.collective_name("replicated", name, ignore_name_scope, process_set_id)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def identity(value: Any) -> Any:
        def average(gradient: Any) -> Any:
            call = names.gradient_name(full_name)
            reduce = lambda parts: builders.allreduce_op(  # noqa: E731
                parts, name=call, op=Average, process_set_id=process_set_id
            )
            return gradients.in_pairs([tf.convert_to_tensor(gradient)], reduce)[0]

        return tf.identity(value), average

    return identity(tf.convert_to_tensor(tensor))
