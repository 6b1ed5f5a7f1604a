"""The gate of elastic jobs: a step updates nothing before all its reductions have succeeded.

A step reduces its gradients by several collectives. Suppose a rank is lost between two of them.
Without the gate a graph would have updated the variables of the first one and counted the step, and
no rank could go on from these weights. With the gate a rank does a step whole or not at all. So the
remaining ranks differ by one step at most, and those behind take the state of one that is ahead.

The gate consists of control dependencies, so it costs little. Its price: updates of some variables
no longer overlap with the reduction of others. In eager mode a failed reduction raises before any
update. Under XLA the whole step is one operation. If it fails, any of its variables may be wrong,
so only copies help (see tfring/keras/elastic/state.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfring.runtime import topology


def wanted() -> bool:
    """Returns whether steps that are traced now need a gate: in elastic jobs."""
    return topology.slot() is not None


def behind_all(gradients: Sequence[Any]) -> list[Any]:
    """Returns gradients that are ready only when all of them are.

    Args:
        gradients: tf.Tensor, tf.IndexedSlices or None.
    """
    tensors = _tensors(gradients)
    if not wanted() or tf.executing_eagerly() or len(tensors) < 2:
        return list(gradients)
    with _after(tensors):
        return [_identity(gradient) for gradient in gradients]


def closed_until(gradients: Iterable[Any]) -> contextlib.AbstractContextManager[Any]:
    """Returns a context whose operations run only when all these gradients are ready.

    Args:
        gradients: tf.Tensor, tf.IndexedSlices or None.
    """
    if not wanted() or tf.executing_eagerly():
        return contextlib.nullcontext()
    return _after(_tensors(gradients))


def _after(tensors: Sequence[Any]) -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which operations wait for tensors, through one operation.

    This keeps the number of edges small. A conditional that has one of the tensors as an input then
    waits, too. It would not take that tensor as a control input, and its branches begin before its
    inputs are ready.
    """
    with tf.control_dependencies(tensors):
        all_there = tf.no_op(name="tfring_gate")
    waiting: contextlib.AbstractContextManager[Any] = tf.control_dependencies([all_there])
    return waiting


def _tensors(gradients: Iterable[Any]) -> list[Any]:
    values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients]
    return [value for value in values if value is not None]


def _identity(gradient: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        values = tf.identity(gradient.values)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return None if gradient is None else tf.identity(gradient)
