"""Models whose gradients and training steps are measured."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfring.runtime import topology
from tfring.training.gradient_tape import DistributedGradientTape

BATCH = 32


def gradient_shapes(name: str) -> list[list[int]] | str:
    """Returns the shapes of the gradients of a model of keras.applications, in forward order.

    Args:
        name: As Keras has it: "ResNet50".

    Returns:
        The shapes; text for the user if there is no such model.
    """
    import keras  # takes a second, and only models need it

    known = [each for each in dir(keras.applications) if each[0].isupper()]
    if name not in known:
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
        return (
            f"--model {name}: keras.applications has no such model"
            f"{'; is it ' + ' or '.join(close) + '?' if close else ''} It has {', '.join(known)}"
        )
    model = getattr(keras.applications, name)(weights=None)
    return [list(variable.shape) for variable in model.trainable_variables]


def build(kind: str) -> Any:
    """Returns a model of about 1.2 million parameters for 28 x 28 images in ten classes.

    Args:
        kind: "mlp" or "cnn", a convolutional network.
    """
    import keras
    from keras import layers

    keras.utils.set_random_seed(1)
    if kind == "mlp":
        body = [layers.Flatten(), layers.Dense(800, "relu"), layers.Dense(700, "relu")]
    else:
        body = [
            layers.Conv2D(32, 3, activation="relu"),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(128, "relu"),
        ]
    return keras.Sequential([keras.Input((28, 28, 1)), *body, layers.Dense(10)])


def counts(kind: str) -> list[int]:
    """Returns how many numbers each gradient of a model of `build` has."""
    return [math.prod(variable.shape) for variable in build(kind).trainable_variables]


def training_step(kind: str, distributed: bool) -> Callable[[], object]:
    """Returns a compiled SGD step on a fixed random batch.

    Args:
        kind: The model.
        distributed: Whether tfring averages gradients over the ranks.
    """
    step, batch = step_and_batch(kind, distributed)
    made = tf.function(step)
    return lambda: made(*batch)


def step_and_batch(kind: str, distributed: bool) -> tuple[Callable[..., Any], tuple[Any, Any]]:
    """Returns the function of `training_step`, and what it is called with."""
    import keras

    model = build(kind)
    optimizer = keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    seed = topology.rank() if distributed else 0  # a batch of its own for each rank
    images = tf.random.normal([BATCH, 28, 28, 1], seed=seed)
    labels = tf.random.uniform([BATCH], maxval=10, dtype=tf.int32, seed=seed)

    def step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        if distributed:
            tape = DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return step, (images, labels)
