"""Gradients of the collectives.

A rank differentiates its own loss, but its tensors reach the losses of others, so each gradient has
to say which loss of the whole job it differentiates. For allreduce, allgather and broadcast this is
Horovod's choice, because scripts depend on it.

Every gradient is a collective itself: all ranks must differentiate the same call. It is named after
the call, with "grad." before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfring import tf_library
from tfring.reduce_ops import Average, Max, Min, Product, Sum

_registered = False


def register() -> None:
    """Tells TensorFlow about the gradients; once per process, when the op library is loaded."""
    global _registered
    if _registered:
        return
    tf.RegisterGradient("TfringAllreduce")(allreduce_gradient)
    tf.RegisterGradient("TfringAllgather")(allgather_gradient)
    tf.RegisterGradient("TfringBroadcast")(broadcast_gradient)
    for kind in ("Rank", "Size", "LocalRank", "LocalSize", "CrossRank", "CrossSize"):
        tf.no_gradient(f"Tfring{kind}")
    tf.no_gradient("TfringProcessSetIncluded")
    _registered = True


def allreduce_gradient(op: Any, *grads: Any) -> list[Any]:
    """The gradient of TfringAllreduce, by reduce operation.

    - Sum: of the sum of all ranks' losses: Sum-allreduce of the gradients.
    - Average: Average-allreduce of the gradients: of the sum of all ranks' losses where every rank
      has its share 1/N of the average. Horovod's rule is "the same operation and factors".
    - Min, Max: of the sum of all ranks' losses. The ranks that hold the extremum share it equally.
    - Product: of the sum of all ranks' losses, exact also where a factor is zero.

    Args:
        op: the operation, with N tensors and the channel as inputs.
        *grads: N gradients, None where an output is not used.

    Returns:
        N gradients and None for the channel.
    """
    tensors = list(op.inputs[:-1])
    dense = [_dense(grad, tensor) for grad, tensor in zip(grads, tensors, strict=True)]
    by_op: dict[int, Callable[..., list[Any]]] = {
        Sum: _linear_gradient,
        Average: _linear_gradient,
        Min: _extremum_gradient,
        Max: _extremum_gradient,
        Product: _product_gradient,
    }
    return [*by_op[int(op.get_attr("reduce_op"))](op, tensors, dense), None]


def _linear_gradient(op: Any, tensors: list[Any], grads: list[Any]) -> list[Any]:
    del tensors
    return tf_library.allreduce_op(
        grads,
        name=_name(op),
        op=int(op.get_attr("reduce_op")),
        prescale=_factor(op, "prescale_factor"),
        postscale=_factor(op, "postscale_factor"),
        process_set_id=_process_set(op),
        group=bool(op.get_attr("group")),
    )


def _extremum_gradient(op: Any, tensors: list[Any], grads: list[Any]) -> list[Any]:
    prescale, postscale = _factor(op, "prescale_factor"), _factor(op, "postscale_factor")
    extrema = list(op.outputs)
    if prescale != 1.0 or postscale != 1.0:
        # The scaled outputs may be rounded: compare with unscaled extrema. A negative prescale
        # turns the order around.
        kind = int(op.get_attr("reduce_op"))
        if prescale < 0:
            kind = Min if kind == Max else Max
        extrema = tf_library.allreduce_op(
            tensors, name=f"{_name(op)}.extrema", op=kind, process_set_id=_process_set(op)
        )
    holds = [
        tf.cast(tf.equal(tensor, extremum), tensor.dtype)
        for tensor, extremum in zip(tensors, extrema, strict=True)
    ]
    sums = tf_library.allreduce_op(
        [*grads, *holds], name=_name(op), op=Sum, process_set_id=_process_set(op)
    )
    totals, holders = sums[: len(grads)], sums[len(grads) :]
    return [
        hold * total / holder * tf.cast(prescale * postscale, total.dtype)
        for hold, total, holder in zip(holds, totals, holders, strict=True)
    ]


def _product_gradient(op: Any, tensors: list[Any], grads: list[Any]) -> list[Any]:
    prescale, postscale = _factor(op, "prescale_factor"), _factor(op, "postscale_factor")
    totals = tf_library.allreduce_op(grads, name=_name(op), op=Sum, process_set_id=_process_set(op))
    results = []
    for i, (tensor, total) in enumerate(zip(tensors, totals, strict=True)):
        # The product of the others without a division, which a zero would spoil.
        factors = tf_library.allgather_op(
            tf.expand_dims(tensor * tf.cast(prescale, tensor.dtype), 0),
            name=f"{_name(op)}.factors.{i}",
            process_set_id=_process_set(op),
        )
        before = tf.math.cumprod(factors, axis=0, exclusive=True)
        after = tf.math.cumprod(factors, axis=0, exclusive=True, reverse=True)
        others = tf.gather(before * after, _rank())
        results.append(total * others * tf.cast(prescale * postscale, total.dtype))
    return [tf.ensure_shape(r, t.shape) for r, t in zip(results, tensors, strict=True)]


def allgather_gradient(op: Any, grad: Any) -> list[Any]:
    """The gradient of TfringAllgather: of the mean of all ranks' losses.

    Average-allreduce of the output's gradient, of which each rank keeps its own rows. Where these
    are, the ranks tell each other when it runs.

    Args:
        op: the operation, with the tensor and the channel as inputs.
        grad: gradient of the output.

    Returns:
        A gradient of the input's shape and None for the channel.
    """
    tensor = op.inputs[0]
    name, process_set = _name(op), _process_set(op)
    rows = tf.shape(tensor, out_type=tf.int64)[:1]
    all_rows = tf_library.allgather_op(rows, name=f"{name}.rows", process_set_id=process_set)
    [total] = _average([tf.convert_to_tensor(grad)], name, process_set)
    start = tf.reduce_sum(all_rows[: _rank()])
    return [tf.ensure_shape(total[start : start + rows[0]], tensor.shape), None]


def broadcast_gradient(op: Any, *grads: Any) -> list[Any]:
    """The gradient of TfringBroadcast: of the mean of all ranks' losses.

    Average-allreduce of the gradients on the root, zeros on the others.

    Args:
        op: the operation, with N tensors and the channel as inputs.
        *grads: N gradients, None where an output is not used.

    Returns:
        N gradients and None for the channel.
    """
    tensors = list(op.inputs[:-1])
    dense = [_dense(grad, tensor) for grad, tensor in zip(grads, tensors, strict=True)]
    is_root = tf.equal(_rank(), int(op.get_attr("root_rank")))
    means = _average(dense, _name(op), _process_set(op))
    return [*(tf.where(is_root, mean, tf.zeros_like(mean)) for mean in means), None]


def _average(grads: list[Any], name: str, process_set: int) -> list[Any]:
    """Average-allreduce; complex gradients travel as pairs of numbers."""
    if not grads[0].dtype.is_complex:
        return tf_library.allreduce_op(grads, name=name, op=Average, process_set_id=process_set)
    pairs = [tf.stack([tf.math.real(grad), tf.math.imag(grad)]) for grad in grads]
    means = tf_library.allreduce_op(pairs, name=name, op=Average, process_set_id=process_set)
    return [tf.complex(mean[0], mean[1]) for mean in means]


def _dense(grad: Any, tensor: Any) -> Any:
    """An output that nobody used has no gradient; the other ranks expect zeros from us."""
    return tf.zeros_like(tensor) if grad is None else tf.convert_to_tensor(grad)


def _rank() -> Any:
    return tf_library.library().tfring_rank()


def _name(op: Any) -> str:
    return f"grad.{tf.compat.as_str(op.get_attr('tensor_name'))}"


def _factor(op: Any, attribute: str) -> float:
    return float(tf.compat.as_str(op.get_attr(attribute)))


def _process_set(op: Any) -> int:
    return int(op.get_attr("process_set_id"))
