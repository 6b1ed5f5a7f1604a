"""Shared by the programs: a model, its data, and this rank's part."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import tfring.keras as hvd

STEPS = 12
GLOBAL_BATCH = 12
LAYERS = keras.layers
_NUMBERS = np.random.default_rng(5)
X = _NUMBERS.normal(size=(STEPS * GLOBAL_BATCH, 4)).astype("float32")
Y = np.tanh(X @ _NUMBERS.normal(size=(4, 1))).astype("float32")


def part(values: np.ndarray, batch: int = GLOBAL_BATCH) -> np.ndarray:
    """This rank's rows: its share of each global batch, in order."""
    steps = values.reshape(-1, hvd.size(), batch // hvd.size(), *values.shape[1:])
    return steps[:, hvd.rank()].reshape(-1, *values.shape[1:])


def batches(*arrays: np.ndarray, batch: int = GLOBAL_BATCH):
    """This rank's batches."""
    rows = batch // hvd.size()
    for begin in range(0, len(arrays[0]) // hvd.size(), rows):
        yield tuple(part(a, batch)[begin : begin + rows] for a in arrays)


def net(seed: int | None = None, outputs: int = 1, activation: str | None = None) -> keras.Model:
    """A small model; without a seed each rank has different weights."""
    keras.utils.set_random_seed(1000 + hvd.rank() if seed is None else seed)
    return keras.Sequential(
        [
            keras.Input((4,)),
            LAYERS.Dense(6, activation="tanh", name="hidden"),
            LAYERS.Dense(outputs, activation=activation, name="head"),
        ]
    )


def sgd(rate: float = 0.1, **options) -> keras.optimizers.Optimizer:
    """A plain optimizer."""
    return keras.optimizers.SGD(rate, **options)


def wrapped(rate: float = 0.1, **options) -> keras.optimizers.Optimizer:
    """An optimizer that averages gradients."""
    return hvd.DistributedOptimizer(sgd(rate), **options)


def fit(model: keras.Model, x=None, y=None, **options) -> keras.callbacks.History:
    """Trains one epoch with this rank's part in order, by default."""
    options = {
        "batch_size": GLOBAL_BATCH // hvd.size(),
        "shuffle": False,
        "verbose": 0,
        "callbacks": hvd.fit_callbacks(),
        **options,
    }
    x = part(X) if x is None else x
    y = part(Y) if y is None else y
    return model.fit(x, y, **options)


def tape_step(model: keras.Model, optimizer, wrap=hvd.DistributedGradientTape, loss=None):
    """A training step of the usual kind, in a tf.function."""
    loss = loss or (lambda y, p: tf.reduce_mean((y - p) ** 2))

    @tf.function(reduce_retracing=True)
    def step(x, y):
        with wrap(tf.GradientTape()) as tape:
            value = loss(y, model(x, training=True))
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return value

    return step


def loop(model: keras.Model, optimizer, **options) -> list[np.ndarray]:
    """A loop over this rank's batches; returns the weights."""
    step = tape_step(model, optimizer, **options)
    for x, y in batches(X, Y):
        step(x, y)
    return model.get_weights()


def broadcast(model: keras.Model, *optimizers) -> None:
    """Broadcasts the variables, as a custom loop does before its first step."""
    for optimizer in optimizers:
        optimizer.build(model.trainable_variables)
    states = [v for optimizer in optimizers for v in optimizer.variables]
    hvd.broadcast_variables([*model.weights, *states], root_rank=0)


def plain(tape):
    """An unwrapped tape."""
    return tape
