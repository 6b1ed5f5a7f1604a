"""A model for each family of Keras layers, and its training."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from zoo_data import (
    CLASSES,
    FEATURES,
    LENGTH,
    WORDS,
    Data,
    next_words,
    numbers,
    of_shape,
    padded_series,
    pairs,
    sentences,
    series,
    texts,
    words,
)
from zoo_training import STEPS, Case, total, unequal

import tfring.keras as hvd

layers, regularizers = keras.layers, keras.regularizers
Dense = layers.Dense
Make = Callable[[], Any]
CLASSIFIES = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@dataclasses.dataclass(frozen=True)
class Family:
    """A row of the table.

    Attributes:
        make: makes the model.
        data: makes inputs and targets.
        alone: makes the model of one process, if it is a different one.
        differs: why the ranks' result is not that of one process; "" if it is.
        tolerance: relative to each tensor's largest element.
        more: additional arguments of the Case.
    """

    make: Make
    data: Data
    alone: Make | None = None
    differs: str = ""
    tolerance: float = 1e-5
    more: dict[str, Any] = dataclasses.field(default_factory=dict)

    def case(self) -> Case:
        x, y = self.data(STEPS * total(unequal))
        return Case(self.make, lambda: keras.optimizers.SGD(0.1, momentum=0.9), x, y, **self.more)


def chain(shape: tuple[int, ...], made: Make, dtype: str = "float32") -> Make:
    """A chain of layers, then Dense. `made` makes the layers once the seed is set."""
    return lambda: keras.Sequential([keras.Input(shape, dtype=dtype), *made(), Dense(CLASSES)])


def of_words(made: Make) -> Make:
    return chain((LENGTH,), made, "int32")


def attention() -> Any:
    x = keras.Input((LENGTH, 4))
    heads = layers.MultiHeadAttention(2, 3)(x, x)
    groups = layers.GroupQueryAttention(2, 4, 2)(heads, heads)
    scored = layers.Attention(use_scale=True, score_mode="concat")([groups, x])
    added = layers.AdditiveAttention()([scored, x])
    return keras.Model(x, Dense(CLASSES)(layers.Flatten()(added)))


def per_word() -> Any:
    """A model whose mask reaches the loss, which divides by the number of words without padding."""
    x = keras.Input((LENGTH,), dtype="int32")
    hidden = layers.Embedding(WORDS, 4, mask_zero=True)(x)
    hidden = layers.Bidirectional(layers.LSTM(4, return_sequences=True))(hidden)
    return keras.Model(x, layers.TimeDistributed(Dense(CLASSES))(hidden))


def tied() -> Any:
    """A model that uses one table as embedding and as output layer."""
    x = keras.Input((LENGTH,), dtype="int32")
    table = layers.ReversibleEmbedding(WORDS, 4)
    return keras.Model(x, table(layers.LayerNormalization()(table(x)), reverse=True))


def regularized() -> list[Any]:
    return [
        Dense(
            7,
            kernel_regularizer=regularizers.L1L2(0.01, 0.02),
            bias_regularizer="l2",
            activity_regularizer=regularizers.L2(0.03),
            kernel_constraint=keras.constraints.MaxNorm(1.0),
        ),
        layers.ActivityRegularization(l1=0.01),
        Dense(4, kernel_regularizer=regularizers.OrthogonalRegularizer(0.02)),
    ]


def several_inputs_and_outputs() -> Any:
    """A model with a layer of two inputs and with a nested model."""
    a, b = keras.Input((FEATURES,), name="a"), keras.Input((4,), name="b")
    shared = keras.Sequential([keras.Input((4,)), Dense(4, activation="tanh")])
    left, right = shared(Dense(4)(a)), shared(b)
    joined = layers.Concatenate()([left, right, layers.Multiply()([left, right])])
    outputs = {"one": Dense(CLASSES, name="one")(joined), "two": Dense(1, name="two")(left)}
    return keras.Model({"a": a, "b": b}, outputs)


def lora() -> Any:
    model = of_words(
        lambda: [
            layers.Embedding(WORDS, 4, name="table"),
            layers.EinsumDense("abc,cd->abd", (LENGTH, 4), name="einsum"),
            layers.Flatten(),
            Dense(7, activation="tanh", name="dense"),
        ]
    )()
    for name in ("table", "einsum", "dense"):
        model.get_layer(name).enable_lora(2)
    return model


def float8() -> Any:
    model = chain((FEATURES,), lambda: [Dense(8, activation="tanh")])()
    model.quantize("float8")
    return model


def rematerialized() -> Any:
    with keras.RematScope(mode="full"):
        return chain((FEATURES,), lambda: [Dense(7, activation="tanh"), Dense(6)])()


def normalized(kind: Any) -> Make:
    return chain((FEATURES,), lambda: [Dense(6, use_bias=False), kind(momentum=0.8)])


def adapted(data: Data, *made: Any, shape: tuple[int, ...], dtype: str = "string") -> Family:
    """A model with a preprocessing layer, the first one, that hvd.adapt shows all ranks' data."""

    def make() -> Any:
        first = made[0](name="adapted")
        return chain(shape, lambda: [first, *(each() for each in made[1:])], dtype)()

    return Family(make, data, more={"adapt": ("adapted",)})


def embedding() -> Any:
    return layers.Embedding(WORDS + 4, 4)


FAMILIES: dict[str, Family] = {
    "conv 2d": Family(
        chain(
            (7, 7, 3),
            lambda: [
                layers.Rescaling(0.5),
                layers.Conv2D(4, 3, groups=1, dilation_rate=2),
                layers.DepthwiseConv2D(2),
                layers.SeparableConv2D(4, 2, padding="same"),
                layers.Conv2DTranspose(3, 2, strides=2),
                layers.MaxPooling2D(),
                layers.Flatten(),
            ],
        ),
        of_shape(7, 7, 3),
    ),
    "recurrent": Family(
        chain(
            (LENGTH, 4),
            lambda: [
                layers.LSTM(5, return_sequences=True),
                layers.Bidirectional(layers.GRU(4, return_sequences=True)),
                layers.SimpleRNN(4),
            ],
        ),
        series,
    ),
    "masking": Family(chain((LENGTH, 4), lambda: [layers.Masking(), layers.GRU(5)]), padded_series),
    "masked loss": Family(
        per_word,
        sentences,
        more={
            "loss": CLASSIFIES,
            "count": lambda x, y: tf.reduce_sum(tf.cast(x > 0, tf.float32)),
        },
    ),
    "attention": Family(attention, series),
    "normalizations": Family(
        chain(
            (LENGTH, 4),
            lambda: [
                layers.LayerNormalization(),
                layers.GroupNormalization(2),
                layers.SpectralNormalization(Dense(6)),
                layers.RMSNormalization(),
                layers.Flatten(),
                layers.UnitNormalization(),
            ],
        ),
        series,
    ),
    "synchronized batch normalization": Family(
        normalized(hvd.SyncBatchNormalization),
        numbers,
        alone=normalized(layers.BatchNormalization),
    ),
    "regularizers and constraints": Family(chain((FEATURES,), regularized), numbers),
    "several inputs and outputs": Family(
        several_inputs_and_outputs,
        pairs,
        more={
            "loss": {"one": "mse", "two": "mae"},
            "options": {"loss_weights": {"one": 0.3, "two": 2.0}},
        },
    ),
    "LoRA": Family(lora, words),
    "float8": Family(
        float8,
        numbers,
        differs="gradients of 2 bits are rounded after a scale that this rank's rows gave",
        more={"graph": True},
    ),
    # Keras' own remat fails in a graph: custom_gradient takes no keyword arguments there.
    "remat": Family(rematerialized, numbers, more={"options": {"run_eagerly": True}}),
    "embedding": Family(of_words(lambda: [embedding(), layers.Flatten()]), words),
    "tied embedding": Family(tied, next_words, more={"loss": CLASSIFIES}),
    "normalization": adapted(numbers, layers.Normalization, shape=(FEATURES,), dtype="float32"),
    "discretization": adapted(
        numbers,
        lambda name: layers.Discretization(num_bins=4, epsilon=0.001, name=name),
        embedding,
        layers.Flatten,
        shape=(FEATURES,),
        dtype="float32",
    ),
    "text": adapted(
        texts,
        lambda name: layers.TextVectorization(WORDS + 2, output_sequence_length=4, name=name),
        embedding,
        layers.Flatten,
        shape=(1,),
    ),
}
