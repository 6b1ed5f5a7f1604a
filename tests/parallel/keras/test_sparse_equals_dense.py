"""Gradients of embeddings: N ranks, sparse or dense, make what one process makes of the batch."""

from __future__ import annotations

import functools
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


def embedding_model(seed: int) -> Any:
    """A classifier of words that stand in one table; what is no word's row gets no gradient."""

    def glorot(number: int) -> Any:
        return keras.initializers.GlorotUniform(seed=seed + number)

    return keras.Sequential(
        [
            keras.layers.Input((4,), dtype="int32"),
            keras.layers.Embedding(ROWS, WIDTH, embeddings_initializer=glorot(0)),
            keras.layers.Flatten(),
            keras.layers.Dense(2, kernel_initializer=glorot(1)),
        ]
    )


class DenseAdam(keras.optimizers.Adam):
    """Adam as it is defined. Keras' own squares the parts of a row's gradient, not their sum."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        return super().apply([tf.convert_to_tensor(g) for g in grads], trainable_variables)


def state_of(model: Any) -> list[Any]:
    return [np.asarray(v) for v in (*model.variables, *model.optimizer.variables)]


def words_and_classes() -> tuple[Any, Any]:
    """By step and rank."""
    steps, dice = 8, np.random.default_rng(3)
    words = dice.integers(0, ROWS - 1, size=(steps, hvd.size(), PER_RANK, 4)).astype(np.int32)
    return words, dice.integers(0, 2, size=(steps, hvd.size(), PER_RANK))


def compile_model(model: Any, optimizer: Any, jit: bool) -> Any:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, jit_compile=jit)
    return model


def fit(model: Any, x: Any, y: Any, per_step: int, *callbacks: Any) -> list[Any]:
    x, y = x.reshape(-1, 4), y.reshape(-1)
    model.fit(x, y, batch_size=per_step, shuffle=False, verbose=0, callbacks=list(callbacks))
    return state_of(model)


@functools.cache
def state_of_one_process(jit: bool) -> list[Any]:
    """What one process makes of the whole batches."""
    words, classes = words_and_classes()
    alone = compile_model(embedding_model(5), DenseAdam(0.05), jit)
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(alone(words[0, 0]))
    table = alone.layers[0].trainable_variables[0].value
    assert isinstance(tape.gradient(total, table), tf.IndexedSlices)
    return fit(alone, words, classes, hvd.size() * PER_RANK)


@pytest.mark.parametrize(("sparse_as_dense", "jit"), [("auto", False), (False, True)])
def test_fit_of_a_model_with_an_embedding(sparse_as_dense: Any, jit: bool) -> None:
    """Adam's moments, too, are those of one process with the whole batches."""
    words, classes = words_and_classes()
    optimizer = hvd.DistributedOptimizer(OF_KERAS.Adam(0.05), sparse_as_dense=sparse_as_dense)
    together = compile_model(embedding_model(5 + 10 * hvd.rank()), optimizer, jit)
    mine = slice(hvd.rank(), hvd.rank() + 1)
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    got = fit(together, words[:, mine], classes[:, mine], PER_RANK, callback)
    for ours, theirs in zip(got, state_of_one_process(jit), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-6)


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
