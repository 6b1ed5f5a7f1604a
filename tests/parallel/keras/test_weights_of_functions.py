"""fit with layers that call a tf.function with a gather inside, of batches of unequal rows."""

from __future__ import annotations

import pathlib
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring
import tfring.keras as hvd

WIDTH, STEPS = 3, 3


class Centred(keras.layers.Layer):
    """Embeddings minus the mean over the embeddings of all ranks."""

    def __init__(self, alone: bool, loss: bool) -> None:
        super().__init__()
        self.alone, self.has_loss = alone, loss

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(WIDTH, 2), name="kernel")
        super().build(shape)

    @tf.function(input_signature=[tf.TensorSpec([None, WIDTH])])
    def embed(self, x: Any) -> Any:
        own = tf.tanh(x @ self.kernel.value)
        whole = (
            own
            if self.alone
            else tfring.allgather(own, gradient="sum", name="embeddings", ignore_name_scope=True)
        )
        return own - tf.reduce_mean(whole, 0)

    def call(self, x: Any) -> Any:
        found = self.embed(x)
        if self.has_loss:
            self.add_loss(tf.reduce_mean(tf.square(found + 0.5)))
        return found


def model(*, alone: bool = False, loss: bool = False) -> Any:
    keras.utils.set_random_seed(3)
    inputs = keras.Input((WIDTH,))
    return keras.Model(inputs, keras.layers.Dense(1)(Centred(alone, loss)(inputs)))


def rows_of(rank: int, step: int) -> int:
    return 2 + (rank + step) % 3


def batches(*, alone: bool) -> Any:
    rng = np.random.default_rng(2)
    for step in range(STEPS):
        counts = [rows_of(rank, step) for rank in range(hvd.size())]
        x = rng.normal(size=(sum(counts), WIDTH)).astype("float32")
        first = 0 if alone else sum(counts[: hvd.rank()])
        x = x[first:] if alone else x[first : first + counts[hvd.rank()]]
        yield x, x[:, :1]


@pytest.mark.parametrize("loss", [False, True])
def test_equals_one_process(loss: bool) -> None:
    """A function whose shapes are fixed is traced again for each number of rows."""
    ours, alone = model(loss=loss), model(alone=True, loss=loss)
    for each, optimizer in (
        (ours, hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))),
        (alone, keras.optimizers.SGD(0.1)),
    ):
        each.compile(optimizer, None if loss else "mse", jit_compile=False)
        for x, y in batches(alone=each is alone):
            each.train_on_batch(x, y)
    for found, expected in zip(ours.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


class Exported(tf.Module):
    """A training step that a program exports."""

    def __init__(self, trained: Any) -> None:
        super().__init__()
        self.model, self.optimizer = trained, trained.optimizer
        self.held = [*trained.metrics_variables, *trained.optimizer.variables]

    @tf.function(
        input_signature=[tf.TensorSpec([None, WIDTH]), tf.TensorSpec([None, 1])],
    )
    def step(self, x: Any, y: Any) -> Any:
        return self.model.train_step((x, y))


def test_a_training_step_can_be_saved(tmp_path: pathlib.Path) -> None:
    trained = model()
    trained.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    exported = Exported(trained)
    x, y = next(iter(batches(alone=False)))
    exported.step(x, y)
    tf.saved_model.save(exported, str(tmp_path))
    assert (tmp_path / "saved_model.pb").exists()
