"""Programs whose loss is not a mean over equally many rows on all ranks."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import tfring.keras as hvd

from .common import (
    GLOBAL_BATCH,
    LAYERS,
    X,
    Y,
    batches,
    broadcast,
    fit,
    net,
    part,
    sgd,
    tape_step,
    wrapped,
)
from .table import wrong

_NUMBERS = np.random.default_rng(9)
TOKENS = _NUMBERS.integers(1, 9, size=(48, 5))
for _row, _length in enumerate(_NUMBERS.integers(1, 6, size=48)):
    TOKENS[_row, _length:] = 0
CLASSES = (X[:, :1] > 0.8).astype("int64")[:, 0]


@wrong("sum", r"op=hvd\.Sum", quick=True)
def loss_that_is_a_sum():
    model = net(1)
    model.compile(wrapped(0.01), keras.losses.MeanSquaredError(reduction="sum"))
    fit(model)
    return model.get_weights()


@wrong("sum", r"op=hvd\.Sum")
def loss_that_is_a_sum_by_train_on_batch():
    model = net(1)
    model.compile(wrapped(0.01), keras.losses.MeanSquaredError(reduction="sum"))
    for x, y in batches(X, Y):
        model.train_on_batch(x, y)
    return model.get_weights()


@wrong(
    "sum",
    r"op=hvd\.Sum",
    silent="fit looks at reduction= of losses, not at what a function computes",
)
def function_that_returns_a_sum():
    model = net(1)
    model.compile(wrapped(0.01), lambda y, p: tf.reduce_sum((y - p) ** 2))
    fit(model)
    return model.get_weights()


@wrong("sum|add_loss", r"op=hvd\.Sum|mean|weight_by", silent="nothing looks at what add_loss adds")
def add_loss_that_is_a_sum_over_rows():
    class Penalty(LAYERS.Layer):
        def call(self, x):
            self.add_loss(0.01 * keras.ops.sum(x**2))
            return x

    model = net(1)
    model = keras.Sequential([keras.Input((4,)), model.layers[0], Penalty(), model.layers[1]])
    model.compile(wrapped(), "mse")
    fit(model)
    return model.get_weights()


@wrong("regulari", r"hvd\.size\(\)|size")
def op_sum_beside_a_regulariser():
    keras.utils.set_random_seed(1)
    dense = LAYERS.Dense(1, kernel_regularizer=keras.regularizers.L2(0.1))
    model = keras.Sequential([keras.Input((4,)), dense])
    loss = keras.losses.MeanSquaredError(reduction="sum")
    model.compile(hvd.DistributedOptimizer(sgd(0.01), op=hvd.Sum), loss)
    fit(model)
    return model.get_weights()


@wrong(
    "weight_by|sum|mean", "N|size|Average", silent="a tape does not know what the loss divided by"
)
def loss_divided_by_the_global_batch():
    """As for tf.distribute: a sum over this rank's rows, divided by the rows of all ranks."""
    model, optimizer = net(1), sgd()
    broadcast(model, optimizer)

    def loss(y, p):
        return tf.nn.compute_average_loss(
            tf.reduce_sum((y - p) ** 2, axis=-1), global_batch_size=GLOBAL_BATCH
        )

    step = tape_step(model, optimizer, loss=loss)
    for x, y in batches(X, Y):
        step(x, y)
    return model.get_weights()


def _tagger() -> keras.Model:
    keras.utils.set_random_seed(2)
    tokens = keras.Input((5,), dtype="int32")
    hidden = LAYERS.Embedding(9, 4, mask_zero=True, name="embedding")(tokens)
    hidden = LAYERS.SimpleRNN(5, return_sequences=True)(hidden)
    return keras.Model(tokens, LAYERS.Dense(9)(hidden))


@wrong()
def masked_sequences():
    model = _tagger()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(wrapped(), loss)
    fit(model, part(TOKENS), part(TOKENS))
    return model.get_weights()


@wrong()
def masked_sequences_by_ignore_class():
    model = _tagger()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    model.compile(wrapped(), loss)
    fit(model, part(TOKENS), part(TOKENS))
    return model.get_weights()


@wrong("weight_by", silent="a tape does not know what the loss divided by")
def masked_mean_in_a_loop():
    model, optimizer = _tagger(), sgd()
    broadcast(model, optimizer)

    def loss(y, p):
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(y, p)
        mask = tf.cast(y != 0, each.dtype)
        return tf.reduce_sum(mask * each) / tf.reduce_sum(mask)

    step = tape_step(model, optimizer, loss=loss)
    for (tokens,) in batches(TOKENS):
        step(tokens, tokens)
    return model.get_weights()


@wrong("weight_by", silent="what a function divides by is not known")
def masked_mean_as_a_loss_function_in_fit():
    model = _tagger()

    def loss(y, p):
        each = keras.losses.sparse_categorical_crossentropy(y, p, from_logits=True)
        mask = keras.ops.cast(y != 0, each.dtype)
        return keras.ops.sum(mask * each) / keras.ops.sum(mask)

    model.compile(wrapped(), loss)
    fit(model, part(TOKENS), part(TOKENS))
    return model.get_weights()


@wrong()
def sums_of_sample_weights():
    model = net(1)
    loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    model.compile(wrapped(), loss)
    fit(model, sample_weight=part(1.0 + np.arange(len(X)) % 7))
    return model.get_weights()


@wrong()
def class_weights():
    model = net(1, outputs=2)
    model.compile(wrapped(), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    fit(model, part(X), part(CLASSES), class_weight={0: 1.0, 1: 5.0})
    return model.get_weights()


@wrong("weight_by", silent="a tape does not know what the loss divided by")
def class_weights_in_a_loop():
    model, optimizer = net(1, outputs=2), sgd()
    broadcast(model, optimizer)
    factors = tf.constant([1.0, 5.0])

    def loss(y, p):
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(y, p)
        weights = tf.gather(factors, y)
        return tf.reduce_sum(weights * each) / tf.reduce_sum(weights)

    step = tape_step(model, optimizer, loss=loss)
    for x, y in batches(X, CLASSES):
        step(x, y)
    return model.get_weights()


@wrong("weight_by")
def two_losses_that_divide_by_different_numbers():
    keras.utils.set_random_seed(2)
    tokens = keras.Input((5,), dtype="int32")
    hidden = LAYERS.Embedding(9, 4, mask_zero=True)(tokens)
    hidden = LAYERS.SimpleRNN(5, return_sequences=True)(hidden)
    length = LAYERS.Dense(1, name="length")(hidden[:, -1])
    model = keras.Model(tokens, [LAYERS.Dense(9, name="tag")(hidden), length])
    tag = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(wrapped(0.01), [tag, "mse"])
    lengths = (TOKENS != 0).sum(axis=1, keepdims=True).astype("float32")
    fit(model, part(TOKENS), [part(TOKENS), part(lengths)])
    return model.get_weights()


@wrong("nan|NaN", "loss|gradient", quick=True)
def nan_on_one_rank_in_fit():
    model = net(1)
    model.compile(wrapped(), "mse")
    targets = part(Y).copy()
    if hvd.rank() == hvd.size() - 1:
        targets[7] = np.nan
    fit(model, y=targets)


@wrong("nan|NaN", "loss|gradient", silent="only callbacks of tfring look at the loss")
def nan_on_one_rank_in_fit_without_callbacks():
    model = net(1)
    model.compile(wrapped(), "mse")
    targets = part(Y).copy()
    if hvd.rank() == hvd.size() - 1:
        targets[7] = np.nan
    fit(model, y=targets, callbacks=[])


@wrong("nan|NaN", "loss|gradient", silent="nothing looks at the loss of a loop")
def nan_on_one_rank_in_a_loop():
    model, optimizer = net(1), sgd()
    broadcast(model, optimizer)
    step = tape_step(model, optimizer)
    for number, (x, y) in enumerate(batches(X, Y)):
        step(x, y * np.float32(np.nan) if number == 1 and hvd.rank() == hvd.size() - 1 else y)
