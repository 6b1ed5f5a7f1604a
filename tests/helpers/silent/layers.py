"""Programs about layer state that is learnt without gradients, and variables of single ranks."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import tfring.keras as hvd

from .common import (
    LAYERS,
    X,
    Y,
    batches,
    broadcast,
    fit,
    net,
    part,
    sgd,
    wrapped,
)
from .table import wrong

WORDS = np.array([f"w{number}" for number in np.random.default_rng(2).integers(0, 12, len(X))])


def _half(values: np.ndarray) -> np.ndarray:
    """The data sorted by the first column; each rank gets one end."""
    order = np.argsort(values[:, 0] if values.ndim > 1 else values)
    return values[np.array_split(order, hvd.size())[hvd.rank()]]


def _normalized(adapted_to: np.ndarray) -> keras.Model:
    layer = LAYERS.Normalization(name="norm")
    layer.adapt(adapted_to)
    return keras.Sequential([keras.Input((4,)), layer, *net(1).layers])


@wrong("norm", r"hvd\.adapt", quick=True)
def normalization_adapted_to_own_data_in_fit():
    model = _normalized(_half(X))
    model.compile(wrapped(), "mse")
    fit(model)
    return model.get_weights()


@wrong()
def normalization_adapted_on_rank_0_and_broadcast():
    layer = LAYERS.Normalization(name="norm")
    layer.build((None, 4))
    if hvd.rank() == 0:
        layer.adapt(3.0 + 2.0 * X)
    model = keras.Sequential([keras.Input((4,)), layer, *net(1).layers])
    broadcast(model)
    return [model.predict(X[:5], verbose=0), *model.get_weights()]


def _lookup(layer: keras.layers.Layer) -> keras.Model:
    keras.utils.set_random_seed(1)
    words = keras.Input((1,), dtype="string")
    hidden = LAYERS.Flatten()(LAYERS.Embedding(20, 4, name="embedding")(layer(words)))
    return keras.Model(words, LAYERS.Dense(1, name="head")(hidden))


@wrong("lookup", r"hvd\.adapt")
def vocabulary_of_own_data_in_fit():
    layer = LAYERS.StringLookup(name="lookup")
    layer.adapt(_half(WORDS))
    model = _lookup(layer)
    model.compile(wrapped(), "mse")
    rows = tf.data.Dataset.from_tensor_slices((part(WORDS)[:, None], part(Y)))
    model.fit(rows.batch(6), verbose=0, callbacks=hvd.fit_callbacks())
    return [model.predict(tf.constant(WORDS[:9, None]), verbose=0)]


class Codebook(LAYERS.Layer):
    """Two codes that follow the inputs by moving averages, as in VQ-VAE."""

    def build(self, shape):
        self.codes = self.add_weight(
            shape=(2, shape[-1]), initializer="ones", trainable=False, name="codes"
        )

    def call(self, x, training=False):
        if training:
            self.codes.assign(0.5 * self.codes + 0.5 * keras.ops.mean(x, axis=0))
        return x + keras.ops.mean(self.codes, axis=0)


def _with_codebook() -> keras.Model:
    first, last = net(1).layers
    return keras.Sequential([keras.Input((4,)), first, Codebook(name="book"), last])


@wrong("book/codes|codes", "allreduce|average|broadcast", quick=True)
def codebook_by_moving_averages_in_fit():
    model = _with_codebook()
    model.compile(wrapped(), "mse")
    fit(model)
    return model.get_weights()


@wrong("batch_norm.*moving|moving_", "SyncBatchNormalization|broadcast|average")
def evaluate_with_statistics_of_each_rank():
    first, last = net(1).layers
    norm = LAYERS.BatchNormalization(name="batch_norm", momentum=0.1)
    model = keras.Sequential([keras.Input((4,)), first, norm, last])
    model.compile(wrapped(), "mse")
    broadcast(model)
    order = np.argsort(X[:, 0])
    for x, y in batches(X[order], Y[order], batch=len(X)):
        model.train_on_batch(x, y)
    return [hvd.evaluate(model, part(X), part(Y), verbose=0)["loss"]]


@wrong("(hidden|head)/kernel", "broadcast")
def evaluate_with_weights_of_each_rank():
    model = net()
    model.compile("sgd", "mse")
    return [hvd.evaluate(model, part(X), part(Y), verbose=0)["loss"]]


def _with_own_layer(optimizer_of):
    """Returns the shared weights after training with a different first layer on each rank."""
    model = net(1)
    own = model.layers[0]
    keras.utils.set_random_seed(10 + hvd.rank())
    own.set_weights([np.random.normal(size=w.shape) for w in own.get_weights()])
    optimizer = optimizer_of(own)
    optimizer.build(model.trainable_variables)
    for x, y in batches(X, 9.0 * Y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    return _rank_0s(model.layers[1].get_weights())


def _rank_0s(arrays):
    """This rank's values and those of rank 0, which have to be equal."""
    return arrays, hvd.broadcast_object(arrays, root_rank=0, name="of_rank_0")


@wrong()
def global_clip_beside_a_local_layer():
    def optimizer(own):
        return hvd.PartialDistributedOptimizer(sgd(global_clipnorm=0.1), local_layers=[own])

    return _with_own_layer(optimizer)


@wrong("head/(kernel|bias)", "register_local_var")
def global_clip_by_hand_beside_a_local_layer():
    model = net(1)
    own = model.layers[0]
    keras.utils.set_random_seed(10 + hvd.rank())
    own.set_weights([np.random.normal(size=w.shape) for w in own.get_weights()])
    optimizer = sgd()
    optimizer.build(model.trainable_variables)
    for x, y in batches(X, 9.0 * Y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        tape = hvd.PartialDistributedGradientTape(tape, local_layers=[own])
        gradients = tape.gradient(loss, model.trainable_variables)
        gradients, _ = tf.clip_by_global_norm(gradients, 0.1)
        optimizer.apply(gradients, model.trainable_variables)
    return _rank_0s(model.layers[1].get_weights())


@wrong(
    "right/(kernel|bias)",
    "unconnected_gradients|every rank|all ranks",
)
def head_without_a_gradient_on_one_rank():
    keras.utils.set_random_seed(1)
    x = keras.Input((4,))
    left, right = LAYERS.Dense(1, name="left"), LAYERS.Dense(1, name="right")
    model, optimizer = keras.Model(x, [left(x), right(x)]), sgd()
    broadcast(model, optimizer)
    for x, y in batches(X, Y):
        with tf.GradientTape() as tape:
            one, two = model(x)
            loss = tf.reduce_mean((one - y) ** 2)
            if hvd.rank() == 0:
                loss += tf.reduce_mean((two - y) ** 2)
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        pairs = zip(gradients, model.trainable_variables, strict=True)
        optimizer.apply_gradients([(g, v) for g, v in pairs if g is not None])


@wrong(
    "hidden/(kernel|bias)",
    "trainable|same model|every rank|all ranks",
)
def layer_frozen_on_one_rank():
    model = net(1)
    model.layers[0].trainable = hvd.rank() != 0
    model.compile(wrapped(), "mse")
    fit(model)
