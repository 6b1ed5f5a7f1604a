"""Overlaps the reductions with the backward pass under XLA on a GPU, for all shapes.

XLA orders a program for little memory. A weight gradient that is larger than the activations can
wait, and so can its collective: XLA would put both behind the whole backward pass. So an activation
gradient passes through an optimization barrier, together with a result of the collective's start.
The ops of earlier layers take it from there, and XLA must put the start before them. The barrier
computes nothing.

The edges change when the whole backward pass is in the graph, and they can make no cycle. Each op
gets a number: that of the first bucket whose start needs it, by data, by a control dependency, or
because both are stateful and it was traced before. (TensorFlow orders some of these later.) All
edges, these included, lead to the same number or a higher one. A barrier of bucket n has only
consumers with higher numbers. An op that no start needs stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfring.ops import xla

_BARRIER, _GRADIENT = "XlaOptimizationBarrier", "TfringOptimizationBarrier"
_START, _DONE = "TfringAllreduceStart", "TfringAllreduceDone"


def begin() -> int:
    """Returns the state for `pin`: the number of ops in the graph before a step's reduction."""
    return len(_operations()) if _wanted() else 0


def pin(begun: int) -> None:
    """Puts each start that was built since `begin` before the backward pass of earlier layers.

    Call it when starts and dones have been built. Does nothing without a GPU, or if no op of an
    earlier layer has to wait.
    """
    if not _wanted():
        return
    operations = _operations()
    starts = [op for op in operations[begun:] if op.type == _START]
    buckets = _first_buckets(operations, starts)
    found: dict[int, Any] = {}
    for op in operations:
        for tensor in op.outputs if op in buckets else ():
            # The last one belongs to the earliest layer.
            if _is_activation(tensor) and _later(tensor, buckets):
                found[buckets[op]] = tensor
    for bucket, tensor in found.items():
        _tie(starts[bucket], tensor, _later(tensor, buckets))


def _wanted() -> bool:
    return xla.compiling() and bool(tf.config.list_physical_devices("GPU"))


def _operations() -> Sequence[Any]:
    operations: Sequence[Any] = tf.compat.v1.get_default_graph().get_operations()
    return operations


def _first_buckets(operations: Sequence[Any], starts: Sequence[Any]) -> dict[Any, int]:
    """Returns the number of the first start that needs an op, for each needed op."""
    before: dict[Any, Any] = {}  # the previous stateful op in the trace
    types: dict[str, bool] = {}
    last = None
    for op in operations:
        if op.type not in types:
            types[op.type] = op.op_def.is_stateful
        if types[op.type] or any(tensor.dtype == tf.resource for tensor in op.inputs):
            before[op], last = last, op
    buckets: dict[Any, int] = {}
    for bucket, start in enumerate(starts):
        stack = [start]
        while stack:
            op = stack.pop()
            if op is None or op in buckets:
                continue
            buckets[op] = bucket
            stack += [tensor.op for tensor in op.inputs]
            stack += [*op.control_inputs, before.get(op)]
    return buckets


def _is_activation(tensor: Any) -> bool:
    """Returns whether a tensor may be the gradient of an activation: no constant, no scale."""
    return bool(tensor.dtype.is_floating) and tensor.shape.rank != 0 and len(tensor.op.inputs) > 0


def _later(tensor: Any, buckets: dict[Any, int]) -> list[Any]:
    """Returns the consumers of a tensor that only later buckets need."""
    own = buckets[tensor.op]
    return [op for op in tensor.consumers() if buckets.get(op, own) > own]


def _tie(start: Any, tensor: Any, consumers: Sequence[Any]) -> None:
    """Makes some consumers of a tensor wait for a start."""
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops  # loads a library

    dones = [op for op in start.outputs[0].consumers() if op.type == _DONE]
    graph = start.graph
    with tf.control_dependencies(None), graph.gradient_override_map({_BARRIER: _GRADIENT}):
        # XLA drops barrier outputs that nobody uses, so the dones take the start's result.
        behind = gen_xla_ops.xla_optimization_barrier([tensor, start.outputs[0]])
    for source, behind_it, ops in zip(
        (tensor, start.outputs[0]), behind, (consumers, dones), strict=True
    ):
        for op in ops:
            for place, value in enumerate(op.inputs):
                if value is source:
                    op._update_input(place, behind_it)


@tf.RegisterGradient(_GRADIENT)  # type: ignore[untyped-decorator]
def _barrier_gradient(op: Any, *grads: Any) -> Any:
    """The gradients of a barrier's results are those of its operands."""
    del op
    return grads
