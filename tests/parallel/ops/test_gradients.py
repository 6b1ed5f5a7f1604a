"""What test_matrix.py leaves out of gradients: zeros, negative factors, other dtypes, none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfring


# The first row of every collective that has a gradient.
def gradient_of(call: Callable[[Any], Any], x: Any, weights: Any, in_graph: bool) -> Any:
    """Gradient of sum(call(x) * weights) on this rank."""

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(call(x) * weights)
        return tape.gradient(loss, x)

    return (tf.function(step) if in_graph else step)(x)


both = pytest.mark.parametrize("in_graph", [False, True])


@both
@pytest.mark.parametrize("factor", [0.5, -3.0])
@pytest.mark.parametrize("op", [tfring.Min, tfring.Max])
def test_extremum(op: int, factor: float, in_graph: bool, rank: int, size: int) -> None:
    """One element differs by rank; the other is equal on all ranks, which share its gradient."""
    got = gradient_of(
        lambda x: tfring.allreduce(x, op=op, prescale_factor=factor),
        tf.constant([float(rank), 5.0]),
        tf.constant([1.0, 2.0]),
        in_graph,
    )
    largest = (op == tfring.Max) == (factor > 0)
    holds = rank == (size - 1 if largest else 0)
    np.testing.assert_allclose(got, [factor * size * holds, 2.0 * factor], rtol=1e-6)


@both
def test_product(in_graph: bool, rank: int, size: int) -> None:
    """Exact with no zero, with one and with several."""
    mine = [rank + 1.0, float(rank != 0), 0.0]
    got = gradient_of(
        lambda x: tfring.allreduce(
            x, op=tfring.Product, prescale_factor=2.0, postscale_factor=0.25
        ),
        tf.constant(mine, tf.float64),
        rank + tf.constant([1.0, 2.0, 3.0], tf.float64),
        in_graph,
    )
    others = [
        np.prod([2.0 * (r + 1) for r in range(size) if r != rank]),
        np.prod([2.0 * (r != 0) for r in range(size) if r != rank]),
        0.0 if size > 1 else 1.0,
    ]
    weights = size * (size - 1) / 2 + size * np.array([1.0, 2.0, 3.0])
    np.testing.assert_allclose(got, weights * others * 2.0 * 0.25, rtol=1e-12)


@both
def test_what_has_no_gradient_says_so(in_graph: bool, rank: int, size: int) -> None:
    call = lambda x: tfring.allreduce(x, op=tfring.Adasum)  # noqa: E731
    with pytest.raises(NotImplementedError, match="Adasum has no gradient"):
        gradient_of(call, tf.constant([1.0, 2.0]), 1.0, in_graph)
    np.testing.assert_array_equal(tfring.allreduce(1.0, op=tfring.Sum), size)


@both
@pytest.mark.parametrize("op", [tfring.Min, tfring.Product])
def test_a_scaled_reducescatter(op: int, in_graph: bool, rank: int, size: int) -> None:
    """Of the sum of all losses; a negative factor turns the minimum into a maximum."""
    mine = np.arange(2.0 * size) * (rank + 1.0) + 1.0
    got = gradient_of(
        lambda x: tfring.reducescatter(x, op=op, prescale_factor=-0.3, postscale_factor=0.7),
        tf.constant(mine, tf.float64),
        rank + 1.0,
        in_graph,
    )
    everybody = -0.3 * np.stack([np.arange(2.0 * size) * (r + 1.0) + 1.0 for r in range(size)])
    weights = np.repeat(np.arange(size) + 1.0, 2) * 0.7
    if op == tfring.Product:
        inner = np.prod(np.delete(everybody, rank, 0), axis=0)
    else:
        holds = everybody == everybody.min(0)
        inner = holds[rank] / holds.sum(0)
    np.testing.assert_allclose(got, weights * inner * -0.3, rtol=1e-12)


@both
def test_a_list_with_unused_outputs(in_graph: bool, rank: int, size: int) -> None:
    def step(a: Any, b: Any, c: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([a, b, c])
            first, _, third = tfring.grouped_allreduce([a, b, c], op=tfring.Sum)
            loss = tf.reduce_sum(first) + 2.0 * tf.reduce_sum(third)
        return tape.gradient(loss, [a, b, c])

    got = (tf.function(step) if in_graph else step)(tf.ones(2), tf.ones(3), tf.ones(4))
    for gradient, shape, factor in zip(got, (2, 3, 4), (1, 0, 2), strict=True):
        np.testing.assert_array_equal(gradient, np.full(shape, factor * size))
