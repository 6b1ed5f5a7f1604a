"""The gate of elastic jobs: no update of a step before all reductions of the step have succeeded.

A step reduces its gradients by several collectives. If a rank is lost between two of them, a graph
would by then have updated the variables of the first one and counted the step, and nobody could go
on from such weights. Behind the gate a step is done whole on a rank, or not at all: the ranks that
are left differ by one step at most, and those behind take the state of one that is ahead.

The gate consists of control dependencies, so it costs little; what it takes away is that updates of
some variables overlap with the reduction of others. In eager mode a failed reduction raises before
any update. Under XLA the whole step is one operation; a failed one may leave any of its variables
spoiled, so there only copies help (see tfring/keras/elastic/state.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfring.runtime import topology


def wanted() -> bool:
    """Returns whether steps that are traced now have a gate: in elastic jobs."""
    return topology.slot() is not None


def behind_all(gradients: Sequence[Any]) -> list[Any]:
    """Returns the gradients, none of which is there before all of them are.

    Args:
        gradients: tf.Tensor, tf.IndexedSlices or None.
    """
    tensors = _tensors(gradients)
    if not wanted() or tf.executing_eagerly() or len(tensors) < 2:
        return list(gradients)
    with _after(tensors):
        return [_identity(gradient) for gradient in gradients]


def closed_until(gradients: Iterable[Any]) -> contextlib.AbstractContextManager[Any]:
    """Returns a context: operations that are built in it run when all these gradients are there.

    Args:
        gradients: tf.Tensor, tf.IndexedSlices or None.
    """
    if not wanted() or tf.executing_eagerly():
        return contextlib.nullcontext()
    return _after(_tensors(gradients))


def _after(tensors: Sequence[Any]) -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which operations wait for tensors, by way of one operation.

    So there are few edges. And a conditional that has one of the tensors as an input waits for it
    as well: it would not get that as a control input, and its branches begin before its inputs are
    there.
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
