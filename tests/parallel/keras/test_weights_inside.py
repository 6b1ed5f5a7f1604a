"""The weight of a rank is that of its compiled loss, whatever else a training step computes."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring
import tfring.keras as hvd

FEATURES, STEPS, TOKENS = 4, 3, 5
SGD = keras.optimizers.SGD
mse = keras.losses.MeanSquaredError()


def rows_of(rank: int) -> int:
    """How many rows a rank has in each step: ranks differ."""
    return 2 + 4 * (rank % 2)


def seed() -> Any:
    return keras.initializers.RandomNormal(seed=1)


def compare(make: Any, *arrays: Any, sgd: Any = SGD, **compiling: Any) -> None:
    """Trains on all ranks and alone, and compares the changes of the weights."""
    counts = [rows_of(rank) for rank in range(hvd.size())]
    first = sum(counts[: hvd.rank()])
    changes = []
    for ranks in (True, False):
        model = make(ranks)
        optimizer = sgd(0.1)
        model.compile(hvd.DistributedOptimizer(optimizer) if ranks else optimizer, **compiling)
        begin, end = (first, first + rows_of(hvd.rank())) if ranks else (0, sum(counts))
        own = [a.reshape(STEPS, sum(counts), *a.shape[1:])[:, begin:end] for a in arrays]
        x, y = (a.reshape(-1, *a.shape[2:]) for a in own)
        before = model.get_weights()
        model.fit(x, y, batch_size=end - begin, shuffle=False, verbose=0)
        changes.append([a - b for a, b in zip(model.get_weights(), before, strict=True)])
    for ours, alone in zip(*changes, strict=True):
        assert np.abs(alone).max() > 0
        worst = np.abs(ours - alone).max() / np.abs(alone).max()
        assert worst < 1e-5, f"rank {hvd.rank()}: differs by {worst:.3g}"


def data(*shape: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    count = STEPS * sum(rows_of(rank) for rank in range(hvd.size()))
    x = rng.normal(size=(count, *shape)).astype("float32")
    return x, 2 * x[..., :1] + x[..., 1:2]


class LossInCondition(keras.layers.Layer):  # type: ignore[misc]
    def call(self, x: Any) -> Any:
        self.add_loss(tf.cond(tf.reduce_sum(x) > -1e9, lambda: mse(x, 0 * x), lambda: 0.0))
        return x


class LossOfEachRow(keras.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1, kernel_initializer=seed())
        self.build((None, FEATURES))

    def build(self, shape: Any) -> None:
        self.dense.build(shape)
        self.built = True

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def compute_loss(self, x: Any, y: Any, y_pred: Any, *_: Any, **__: Any) -> Any:
        each = tf.map_fn(lambda t: mse(*t), (y, y_pred), fn_output_signature=tf.float32)
        return tf.reduce_mean(each)


class InFunction(LossOfEachRow):
    """Its compiled loss runs in a function of its own."""

    def compute_loss(self, x: Any, y: Any, y_pred: Any, *_: Any, **__: Any) -> Any:
        return tf.function(lambda: keras.Model.compute_loss(self, x, y, y_pred))()


def with_condition() -> Any:
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(3, kernel_initializer=seed()),
            LossInCondition(),
            keras.layers.Dense(1, kernel_initializer=seed()),
        ]
    )


@pytest.mark.parametrize("make", [with_condition, InFunction])
def test_losses_in_graphs_of_their_own(make: Any) -> None:
    compare(lambda _: make(), *data(FEATURES), loss="mse")


class SmallLoss(keras.layers.Layer):  # type: ignore[misc]
    """Adds a loss without a mask, too small to be seen in the weights."""

    supports_masking = True

    def call(self, x: Any, mask: Any = None) -> Any:
        self.add_loss(1e-9 * mse(x, 0 * x))
        return x


@pytest.mark.filterwarnings("ignore:tfring. the losses of this model divide")
def test_a_loss_of_a_layer_before_that_of_the_model() -> None:
    x, y = data(TOKENS, FEATURES)
    x[::3, 1:] = 0

    def make(_: bool) -> Any:
        return keras.Sequential(
            [
                keras.Input((TOKENS, FEATURES)),
                keras.layers.Masking(),
                SmallLoss(),
                keras.layers.Dense(1, kernel_initializer=seed()),
            ]
        )

    compare(make, x, y, loss="mse", run_eagerly=True)


class Penalty(keras.layers.Layer):  # type: ignore[misc]
    """Takes the gradient of a function of all ranks' rows in its forward pass."""

    def __init__(self, ranks: bool) -> None:
        super().__init__()
        self.ranks = ranks
        self.dense = keras.layers.Dense(2, kernel_initializer=seed())

    def build(self, shape: Any) -> None:
        self.dense.build(shape)

    def call(self, x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            own = tf.tanh(self.dense(x))
            everyone = (
                tfring.allgather(own, gradient="sum", name="all", ignore_name_scope=True)
                if self.ranks
                else own
            )
            spread = tf.reduce_sum(tf.square(own - tf.reduce_mean(everyone, 0)), 1)
        gradient = tape.gradient(spread, x)
        return tf.reduce_sum(gradient**2, 1, keepdims=True) + tf.reduce_sum(own, 1, keepdims=True)


class CustomScale(SGD):  # type: ignore[misc]
    """Does without the method of Keras."""

    def scale_loss(self, loss: Any) -> Any:
        return loss


@pytest.mark.parametrize(("eager", "sgd"), [(False, SGD), (True, CustomScale)])
def test_a_tape_within_the_forward_pass(eager: bool, sgd: Any) -> None:
    def make(ranks: bool) -> Any:
        return keras.Sequential([keras.Input((FEATURES,)), Penalty(ranks)])

    # Ranks have unequal rows, and XLA compiles no allgather of these.
    how = {"run_eagerly": eager, "jit_compile": False}
    compare(make, *data(FEATURES), sgd=sgd, loss="mse", **how)
