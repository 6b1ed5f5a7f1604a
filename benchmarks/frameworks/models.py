"""The models and their data: the same in Keras 3 on each backend, and in Keras 2."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

MODELS = ("mlp", "cnn", "transformer")
GLOBAL_BATCH = 64
BATCHES = 32  # of an epoch
CLASSES = 10
RATE, MOMENTUM = 0.01, 0.9

_WORDS, _LENGTH, _WIDTH, _HEADS = 1000, 16, 128, 4


def build(keras: Any, kind: str) -> Any:
    """Returns a model whose weights are equal in each process and framework.

    Args:
        keras: the module of Keras 3 or 2.
        kind: one of MODELS.
    """
    layers = keras.layers
    if kind == "transformer":
        inputs = keras.Input((_LENGTH,), dtype="int32")
        hidden = _transformer(layers, inputs)
    else:
        inputs = keras.Input((28, 28, 1))
        hidden = _mlp(layers, inputs) if kind == "mlp" else _cnn(layers, inputs)
    model = keras.Model(inputs, layers.Dense(CLASSES)(hidden))
    random = np.random.default_rng(1)
    model.set_weights([_start(weight, random) for weight in model.get_weights()])
    return model


def compiled(keras: Any, kind: str, wrap: Any = lambda optimizer: optimizer) -> Any:
    """Returns the model, ready for `fit`, with an optimizer that `wrap` may replace."""
    model = build(keras, kind)
    optimizer = wrap(keras.optimizers.SGD(RATE, momentum=MOMENTUM))
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def epoch(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the inputs and labels of an epoch, in the order of the global batches."""
    random = np.random.default_rng(2)
    count = GLOBAL_BATCH * BATCHES
    labels = random.integers(0, CLASSES, count).astype("int32")
    if kind == "transformer":
        return random.integers(0, _WORDS, (count, _LENGTH)).astype("int32"), labels
    return random.normal(size=(count, 28, 28, 1)).astype("float32"), labels


def rows_of(values: np.ndarray, rank: int, size: int) -> np.ndarray:
    """Returns a rank's rows of each global batch, in order."""
    batches = values.reshape(-1, GLOBAL_BATCH, *values.shape[1:])
    part = GLOBAL_BATCH // size
    return batches[:, rank * part : (rank + 1) * part].reshape(-1, *values.shape[1:])


def _start(weight: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Returns the first value of a weight. Vectors stay: biases are 0, and scales 1."""
    if weight.ndim < 2:
        return weight
    fan_in, fan_out = math.prod(weight.shape[:-1]), weight.shape[-1]
    scale = math.sqrt(2.0 / (fan_in + fan_out))
    return (scale * random.normal(size=weight.shape)).astype("float32")


def _mlp(layers: Any, x: Any) -> Any:
    x = layers.Flatten()(x)
    x = layers.Dense(800, activation="relu")(x)
    return layers.Dense(700, activation="relu")(x)


def _cnn(layers: Any, x: Any) -> Any:
    x = layers.Conv2D(32, 3, strides=2, activation="relu")(x)
    x = layers.Conv2D(64, 3, strides=2, activation="relu")(x)
    x = layers.Flatten()(x)
    return layers.Dense(128, activation="relu")(x)


def _transformer(layers: Any, tokens: Any) -> Any:
    x = layers.Embedding(_WORDS, _WIDTH)(tokens)
    x = layers.add([x, layers.Conv1D(_WIDTH, 3, padding="causal")(x)])  # knows positions
    for _ in range(4):
        normal = layers.LayerNormalization()(x)
        attended = layers.MultiHeadAttention(_HEADS, _WIDTH // _HEADS)(normal, normal)
        x = layers.add([x, attended])
        wide = layers.Dense(4 * _WIDTH, activation="relu")(layers.LayerNormalization()(x))
        x = layers.add([x, layers.Dense(_WIDTH)(wide)])
    return layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
