"""Programs about the data of the ranks."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import tfring.keras as hvd

from .common import X, Y, broadcast, fit, net, part, sgd, tape_step, wrapped
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
def shard_of_files_in_the_order_of_the_folder():
    """A dataset whose samples come in a different order on each rank."""
    order = np.random.default_rng(hvd.rank()).permutation(len(X))
    samples = tf.data.Dataset.from_tensor_slices((X[order], Y[order]))
    model = net(1)
    model.compile(wrapped(), "mse")
    rows = hvd.shard(samples, batch_size=6)
    model.fit(rows, verbose=0, callbacks=hvd.fit_callbacks())
