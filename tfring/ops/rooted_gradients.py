"""Gradients of the collectives with a root: of the sum of all ranks' losses.

Horovod has none of these collectives, so these gradients are the analytic ones. As for all
collectives, every rank has to differentiate the call: its loss must contain its own result, even
zeros and empty tensors.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfring.ops import builders, gradients
from tfring.ops.reduce_ops import Average, Sum


@gradients.gradient_of("TfringReduce")
def reduce_gradient(op: Any, grads: list[Any], name: str) -> list[Any]:
    """The gradient of TfringReduce: of the sum of all ranks' losses.

    Only the root's loss depends on the tensors; the zeros of the others are constants. So it is the
    root's gradient, broadcast. For Average it is divided by the number of ranks that took part.
    Min, Max and Product share it as in gradients.allreduce_gradient. The factors of the call
    multiply it.
    """
    set_id, root = _call(op)
    totals = builders.broadcast_op(grads, name=name, root_rank=root, process_set_id=set_id)
    kind = gradients.reduction(op)
    if kind not in (Sum, Average):
        results = builders.broadcast_op(
            list(op.outputs), name=f"{name}.results", root_rank=root, process_set_id=set_id
        )
        return gradients.gradients_of_selection(op, list(op.inputs[:-1]), results, totals, name)
    scale = gradients.factor(op, "prescale_factor") * gradients.factor(op, "postscale_factor")
    scaled = [total * tf.constant(scale, total.dtype) for total in totals]
    if kind == Average:
        count = _participants(f"{name}.count", set_id)
        scaled = [total / tf.cast(count, total.dtype) for total in scaled]
    return scaled


@gradients.gradient_of("TfringGather")
def gather_gradient(op: Any, grads: list[Any], name: str) -> list[Any]:
    """The gradient of TfringGather: of the sum of all ranks' losses.

    Each rank gets the gradient of its rows from the root: a scatter.
    """
    tensor = op.inputs[0]
    set_id, root = _call(op)
    rows = tf.shape(tensor, out_type=tf.int64)[:1]
    all_rows = builders.gather_op(rows, name=f"{name}.rows", root_rank=root, process_set_id=set_id)
    mine = builders.scatter_op(grads[0], all_rows, name=name, root_rank=root, process_set_id=set_id)
    return [tf.ensure_shape(mine, tensor.shape)]


@gradients.gradient_of("TfringScatter")
def scatter_gradient(op: Any, grads: list[Any], name: str) -> list[Any]:
    """The gradient of TfringScatter: of the sum of all ranks' losses.

    The root gets the gradients of all rows: a gather. The other ranks' tensors are not used, so
    their gradients are zeros.
    """
    tensor = op.inputs[0]
    set_id, root = _call(op)
    gathered = builders.gather_op(grads[0], name=name, root_rank=root, process_set_id=set_id)
    # The other ranks get no rows, so all their gradients are zeros.
    missing = tf.zeros_like(tensor)[tf.shape(gathered)[0] :]
    return [tf.ensure_shape(tf.concat([gathered, missing], 0), tensor.shape)]


def _call(op: Any) -> tuple[int, int]:
    """Returns the process set and the root."""
    return gradients.process_set(op), int(op.get_attr("root_rank"))


def _participants(name: str, process_set_id: int) -> Any:
    """Returns the number of ranks that take part in this collective, as an int32 scalar."""
    [count] = builders.allreduce_op(
        [tf.constant(1)], name=name, op=Sum, process_set_id=process_set_id
    )
    return count
