"""Gradients of embeddings: N ranks, sparse or dense, make what one process makes of the batch."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring
import tfring.keras as hvd
from tfring.training import bucket_reduction

ROWS, WIDTH, PER_RANK, STEPS = 7, 3, 6, 3
OF_KERAS = keras.optimizers
OPTIMIZERS: dict[str, Any] = {
    "momentum": lambda rate: OF_KERAS.SGD(rate, momentum=0.9, nesterov=True),
    "clipnorm": lambda rate: OF_KERAS.Adam(rate, global_clipnorm=0.05),
    "ema": lambda rate: OF_KERAS.Adam(rate, use_ema=True, ema_overwrite_frequency=2),
    "accumulation": lambda rate: OF_KERAS.Adam(rate, gradient_accumulation_steps=3),
}


def ids_of(step: int) -> Any:
    """The whole batch: rows occur several times on one rank and on several ranks."""
    return np.random.default_rng(step).integers(0, ROWS - 1, size=(hvd.size(), PER_RANK))


def table_of() -> Any:
    values = np.random.default_rng(9).normal(size=(ROWS, WIDTH)).astype(np.float32)
    return keras.Variable(values, name="embeddings")


def gradient_of(table: Any, ids: Any) -> Any:
    """The tf.IndexedSlices of the mean over these samples."""
    with tf.GradientTape() as tape:
        rows = tf.gather(table.value, tf.reshape(ids, [-1]))
        weights = 1.0 + 0.1 * tf.cast(tf.reshape(ids, [-1, 1]), tf.float32)
        loss = tf.reduce_mean(weights * tf.sin(rows) * rows)
    gradient = tape.gradient(loss, table.value)
    assert isinstance(gradient, tf.IndexedSlices)
    return gradient


def train(optimizer: Any, gradient: Any) -> list[Any]:
    """The table and the optimizer's variables after some steps."""
    table = table_of()
    optimizer.build([table])
    for step in range(STEPS):
        optimizer.apply([gradient(table, ids_of(step))], [table])
    return [table.numpy(), *(np.asarray(v) for v in optimizer.variables)]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_of_keras(name: str) -> None:
    alone = train(
        OPTIMIZERS[name](0.1), lambda table, ids: tf.convert_to_tensor(gradient_of(table, ids))
    )
    for sparse_as_dense in (False, True, "auto"):
        optimizer = hvd.DistributedOptimizer(OPTIMIZERS[name](0.1), sparse_as_dense=sparse_as_dense)
        together = train(optimizer, lambda table, ids: gradient_of(table, ids[hvd.rank()]))
        for ours, theirs in zip(together, alone, strict=True):
            np.testing.assert_allclose(
                ours, theirs, rtol=2e-4, atol=1e-6, err_msg=f"{name} {sparse_as_dense}"
            )


def test_jit_compile_makes_gradients_of_embeddings_dense_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bucket_reduction._say_dense.cache_clear()
    table = tf.Variable(tf.zeros([3, 2]))

    def step(rows: Any) -> Any:
        with tf.GradientTape() as tape:
            target = tf.reduce_sum(tf.gather(table, rows)) * (hvd.rank() + 1)
        return tfring.DistributedGradientTape(tape).gradient(target, table)

    mean = (hvd.size() + 1) / 2
    for rows in ([0, 2], [0, 2, 0]):  # traced twice
        reduced = tf.function(step, jit_compile=True)(tf.constant(rows))
        expected = np.outer([rows.count(row) * mean for row in range(3)], [1, 1])
        np.testing.assert_allclose(reduced, expected)
    assert caplog.text.count("reduced as dense tensors") == (hvd.rank() == 0)


def test_integer_averages_keep_their_dtype() -> None:
    """As those of dense tensors: the sum is divided, rounded toward zero."""
    values = tf.constant([[-5], [-2]], tf.int32)
    slices = tf.IndexedSlices(values * (hvd.rank() + 1), tf.constant([1, 1]), tf.constant([2, 1]))
    mean = hvd.allreduce(tf.constant([-7 * (hvd.rank() + 1)]), op=hvd.Average)
    reduced = tfring.allreduce(slices, op=hvd.Average)
    assert reduced.dtype == tf.int32
    np.testing.assert_array_equal(reduced.values, [mean])
