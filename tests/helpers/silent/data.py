"""Programs about the data of the ranks."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import tfring.keras as hvd

from .common import GLOBAL_BATCH, X, Y, broadcast, fit, net, part, sgd, tape_step, wrapped
from .table import wrong

SAME = ("same (batch|sample|data)|equal", r"hvd\.shard")


@wrong(*SAME, quick=True)
def all_of_the_data_on_every_rank():
    hvd.set_random_seed(42)
    model = net(1)
    model.compile(wrapped(), "mse")
    fit(model, X, Y, batch_size=12, shuffle=True)


@wrong(*SAME)
def all_of_the_data_without_callbacks_and_with_keras_seed():
    model = net(42)
    model.compile(wrapped(), "mse")
    fit(model, X, Y, batch_size=12, shuffle=True, callbacks=[])


@wrong(*SAME)
def all_of_the_data_shuffled_by_tf_data():
    tf.random.set_seed(3)
    model, optimizer = net(3), sgd()
    broadcast(model, optimizer)
    step = tape_step(model, optimizer)
    for x, y in tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(len(X), seed=1).batch(12):
        step(x, y)


@wrong(*SAME)
def all_of_the_data_by_train_on_batch():
    model = net(1)
    model.compile(wrapped(), "mse")
    for begin in range(0, len(X), 12):
        model.train_on_batch(X[begin : begin + 12], Y[begin : begin + 12])


@wrong(*SAME)
def all_of_the_data_with_adam_and_accumulation():
    model = net(1)
    adam = keras.optimizers.Adam(0.01, gradient_accumulation_steps=2)
    model.compile(hvd.DistributedOptimizer(adam), "mse")
    fit(model, X, Y, batch_size=6)


@wrong(*SAME)
def all_of_the_data_in_a_train_step():
    class Mine(keras.Sequential):
        def train_step(self, data):
            x, y = data
            with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
                loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            return {"loss": loss}

    model = Mine(net(1).layers)
    model.compile(sgd())
    fit(model, X, Y, batch_size=12)


@wrong(*SAME)
def all_of_the_data_with_dropout_seeded_alike():
    model = net(1)
    dropout = keras.layers.Dropout(0.5, seed=7)
    model = keras.Sequential([keras.Input((4,)), model.layers[0], dropout, model.layers[1]])
    model.compile(wrapped(), "mse")
    fit(model, X, Y, batch_size=12)


@wrong(*SAME)
def every_rank_takes_the_share_of_rank_0():
    """tf.data's shard with a rank that was read before init, so 0 on all ranks."""
    model = net(1)
    model.compile(wrapped(), "mse")
    rows = tf.data.Dataset.from_tensor_slices((X, Y)).shard(hvd.size(), 0).batch(6)
    model.fit(rows, verbose=0, callbacks=hvd.fit_callbacks())


@wrong("batch", "unbatch|shard_batches")
def shard_of_batches():
    rows = tf.data.Dataset.from_tensor_slices((X, Y)).batch(12)
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(wrapped(), "mse")
    model.fit(hvd.shard(rows, batch_size=2), verbose=0, callbacks=hvd.fit_callbacks())


@wrong("differ|same|different", "shard")
def shard_of_what_each_rank_has_loaded():
    model = net(1)
    model.compile(wrapped(), "mse")
    rows = hvd.shard((part(X), part(Y)), batch_size=6)
    model.fit(rows, verbose=0, callbacks=hvd.fit_callbacks())


@wrong("differ|same|different", "shard")
def shard_of_data_that_each_rank_has_shuffled():
    order = np.random.default_rng(hvd.rank()).permutation(len(X))
    model = net(1)
    model.compile(wrapped(), "mse")
    rows = hvd.shard((X[order], Y[order]), batch_size=6)
    model.fit(rows, verbose=0, callbacks=hvd.fit_callbacks())


@wrong("differ|same|different", "shard")
def shard_of_files_in_the_order_of_the_folder():
    """A dataset whose samples come in a different order on each rank."""
    order = np.random.default_rng(hvd.rank()).permutation(len(X))
    samples = tf.data.Dataset.from_tensor_slices((X[order], Y[order]))
    model = net(1)
    model.compile(wrapped(), "mse")
    rows = hvd.shard(samples, batch_size=6)
    model.fit(rows, verbose=0, callbacks=hvd.fit_callbacks())


@wrong()
def last_partial_batch_of_shard():
    model = net(1)
    model.compile(wrapped(), "mse")
    rows = hvd.shard((X[:31], Y[:31]), GLOBAL_BATCH // hvd.size(), shuffle_buffer=0)
    model.fit(rows, verbose=0, callbacks=hvd.fit_callbacks())
    return model.get_weights()


def _uneven(values: np.ndarray) -> np.ndarray:
    """The first rank has three quarters of each batch of 12, the last rank has the rest."""
    if hvd.size() == 1:
        return values
    return values[:9] if hvd.rank() == 0 else values[9:]


@wrong()
def batches_of_unequal_size_in_fit():
    model = net(1)
    model.compile(wrapped(), "mse")
    for begin in range(0, len(X), 12):
        model.train_on_batch(_uneven(X[begin : begin + 12]), _uneven(Y[begin : begin + 12]))
    return model.get_weights()


@wrong("weight_by", "rows|batch", silent="a tape does not know what the loss divided by")
def batches_of_unequal_size_in_a_loop():
    model, optimizer = net(1), sgd()
    broadcast(model, optimizer)
    step = tape_step(model, optimizer)
    for begin in range(0, len(X), 12):
        step(_uneven(X[begin : begin + 12]), _uneven(Y[begin : begin + 12]))
    return model.get_weights()


@wrong("weight_by", "rows|batch", silent="a train_step's loss is not known")
def batches_of_unequal_size_in_a_train_step():
    class Mine(keras.Sequential):
        def train_step(self, data):
            x, y = data[:2]
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            return {"loss": loss}

    model = Mine(net(1).layers)
    model.compile(wrapped())
    for begin in range(0, len(X), 12):
        model.train_on_batch(_uneven(X[begin : begin + 12]), _uneven(Y[begin : begin + 12]))
    return model.get_weights()
