"""Two small models of about 1.2 million parameters, and a training step for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

BATCH = 32


def build(kind: str) -> Any:
    """An MLP, or a convolutional network, for 28 x 28 images in ten classes."""
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


def training_step(kind: str, distributed: bool) -> Callable[[], object]:
    """A compiled SGD step on a fixed random batch; with `distributed` it averages gradients."""
    import keras
    import tensorflow as tf

    import tfring as hvd

    model = build(kind)
    optimizer = keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    images = tf.random.normal([BATCH, 28, 28, 1])
    labels = tf.random.uniform([BATCH], maxval=10, dtype=tf.int32)

    @tf.function
    def step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        if distributed:
            tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return lambda: step(images, labels)
