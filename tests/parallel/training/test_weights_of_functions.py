"""Gathers within a tf.function that a weighted step calls: TensorFlow keeps their gradients.

It builds the gradient of such a function once: in eager mode before the tape differentiates, and in
a graph for the first trace. Each of the later steps has another weight.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tiers import slow

import tfring as hvd

WIDTH = 3


class Model(tf.Module):
    """Embeddings, and those of all ranks, from a function of its own."""

    def __init__(self, inner: str) -> None:
        super().__init__()
        start = np.linspace(-0.5, 0.6, WIDTH * 2).reshape(WIDTH, 2)
        self.kernel = tf.Variable(start, dtype=tf.float32)
        signature = [tf.TensorSpec([None, WIDTH])]
        self.embed: Callable[[Any], Any] = self._embed
        if inner != "plain":
            self.embed = tf.function(
                self._embed,
                input_signature=None if inner == "jit" else signature,
                jit_compile=inner == "jit",
            )

    def _embed(self, x: Any) -> Any:
        own = tf.tanh(x @ self.kernel)
        return own, hvd.allgather(own, gradient="sum", name="embeddings")

    def loss(self, x: Any) -> Any:
        return loss_of(*self.embed(x))


def loss_of(own: Any, everybody: Any) -> Any:
    rows = tf.reduce_sum(tf.square(own), 1)
    return tf.reduce_mean(rows * tf.reduce_logsumexp(own @ tf.transpose(everybody), 1))


def rows_of(step: int) -> list[int]:
    return [2 + (rank + step) % 3 for rank in range(hvd.size())]


def batch(step: int, inner: str) -> tuple[Any, Any]:
    """This rank's rows and all. Compiled gathers need as many rows on each rank."""
    counts = [2 + step % 2] * hvd.size() if inner == "jit" else rows_of(step)
    x = np.random.default_rng(step).normal(size=(sum(counts), WIDTH)).astype("float32")
    first = sum(counts[: hvd.rank()])
    return tf.constant(x[first : first + counts[hvd.rank()]]), tf.constant(x)


def weights_of(inner: str, step: int) -> list[int]:
    return [1 + rank + step for rank in range(hvd.size())] if inner == "jit" else rows_of(step)


def one_process(kernel: Any, x: Any, counts: list[int], rows: list[int]) -> Any:
    """The gradient of the mean of all ranks' losses, weighted by `counts`."""
    with tf.GradientTape() as tape:
        everybody = tf.tanh(x @ kernel)
        losses = [loss_of(own, everybody) for own in tf.split(everybody, rows)]
        parts = [count * loss for count, loss in zip(counts, losses, strict=True)]
        loss = tf.add_n(parts) / sum(counts)
    return tape.gradient(loss, kernel)


@pytest.mark.parametrize("outer", [slow("eager"), "graph", "jit"])
@pytest.mark.parametrize("inner", ["plain", slow("function"), "jit"])
def test_equals_one_process(outer: str, inner: str) -> None:
    model = Model(inner)
    alike = "jit" if "jit" in (outer, inner) else inner  # as many rows on each rank

    def gradient(x: Any, count: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = model.loss(x)
        return hvd.DistributedGradientTape(tape, weight_by=count).gradient(loss, model.kernel)

    run = gradient if outer == "eager" else tf.function(gradient, jit_compile=outer == "jit")
    for step in range(4):
        own, x = batch(step, alike)
        counts = weights_of(alike, step)
        rows = [len(own)] * hvd.size() if alike == "jit" else rows_of(step)
        found = run(own, tf.constant(float(counts[hvd.rank()])))
        expected = one_process(model.kernel, x, counts, rows)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("graph", [False, True])
def test_a_pass_after_a_weighted_one_counts_ranks_alike(graph: bool) -> None:
    """The same gradient, of the same function, once with weights and once without."""
    model = Model("function")

    def gradients(x: Any) -> list[Any]:
        found = []
        for weight in (rows_of(0)[hvd.rank()], None, 5.0 + hvd.rank()):
            with tf.GradientTape() as tape:
                loss = model.loss(x)
            tape = hvd.DistributedGradientTape(tape, weight_by=weight)
            found.append(tape.gradient(loss, model.kernel))
        return found

    own, x = batch(0, "function")
    alike = [1] * hvd.size()
    third = [5 + rank for rank in range(hvd.size())]
    run = tf.function(gradients) if graph else gradients
    for _ in range(2):
        for found, counts in zip(run(own), (rows_of(0), alike, third), strict=True):
            expected = one_process(model.kernel, x, counts, rows_of(0))
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


class Step(tf.Module):
    """A step with weights, as a program may save it."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model("function")

    @tf.function(input_signature=[tf.TensorSpec([None, WIDTH])])
    def gradient(self, x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = self.model.loss(x)
        tape = hvd.DistributedGradientTape(tape, weight_by=tf.shape(x)[0])
        return tape.gradient(loss, self.model.kernel)


def test_a_weighted_step_can_be_saved(tmp_path: pathlib.Path) -> None:
    step = Step()
    own, x = batch(0, "function")
    step.gradient(own)
    tf.saved_model.save(step, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    found = loaded.gradient(own)
    expected = one_process(step.model.kernel, x, rows_of(0), rows_of(0))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
