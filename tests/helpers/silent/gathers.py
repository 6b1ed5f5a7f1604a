"""Programs with losses over the embeddings of all ranks."""

from __future__ import annotations

import keras
import tensorflow as tf

import tfring.keras as hvd

from .common import X, batches, broadcast, net, sgd
from .table import wrong


def _towers() -> keras.Model:
    left, right = net(1, outputs=3), net(2, outputs=3)
    one, two = keras.Input((4,)), keras.Input((4,))
    return keras.Model([one, two], [left(one), right(two)])


def _own_rows(query, document, gather):
    """The loss of this rank's rows against the rows of all ranks."""
    documents = gather(document)
    mine = hvd.rank() * tf.shape(query)[0] + tf.range(tf.shape(query)[0])
    scores = query @ tf.transpose(documents)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(mine, scores))


def _all_rows(query, document, gather):
    query, document = gather(query), gather(document)
    scores = query @ tf.transpose(document)
    numbers = tf.range(tf.shape(query)[0])
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(numbers, scores))


def _loop(loss, gather=hvd.allgather):
    model, optimizer = _towers(), sgd()
    broadcast(model, optimizer)

    @tf.function
    def step(one, two):
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            value = loss(*model([one, two], training=True), gather)
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)

    for one, two in batches(X, X[:, ::-1].copy()):
        step(one, two)
    return model.get_weights()


@wrong(quick=True)
def own_rows_against_all():
    return _loop(_own_rows)


@wrong('gradient="sum"|gradient', "averag")
def gradient_that_is_averaged_twice():
    return _loop(_own_rows, lambda x: hvd.allgather(x, gradient="horovod"))


@wrong('gradient="sum"|gradient', "averag")
def gradient_that_is_a_mean_behind_a_tape_that_averages():
    return _loop(_all_rows, lambda x: hvd.allgather(x, gradient="mean"))
