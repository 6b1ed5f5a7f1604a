"""Custom loops in which one rank differs from the others."""

from __future__ import annotations

import keras
import tensorflow as tf

import tfring.keras as hvd

from .common import LAYERS, X, Y, batches, broadcast, net, sgd, tape_step
from .table import wrong


@wrong(
    "(hidden|head)/(kernel|bias)",
    "broadcast",
)
def best_model_is_restored_on_rank_0():
    model, optimizer = net(1), sgd()
    broadcast(model, optimizer)
    step = tape_step(model, optimizer)
    best = model.get_weights()
    for number, (x, y) in enumerate(batches(X, Y)):
        step(x, y)
        if number == 3 and hvd.rank() == 0:
            model.set_weights(best)
    return model.get_weights()


@wrong(
    "learning.rate|(hidden|head)/(kernel|bias)",
    "broadcast|same|all ranks",
)
def learning_rate_is_lowered_by_each_ranks_own_loss():
    model, optimizer = net(1), sgd()
    broadcast(model, optimizer)
    step = tape_step(model, optimizer)
    for number, (x, y) in enumerate(batches(X, Y)):
        step(x, y)
        if number == 3 and hvd.rank() == 1:
            optimizer.learning_rate.assign(0.001)
    return model.get_weights()


@wrong("critic|head|hidden", "broadcast")
def second_model_is_not_broadcast():
    generator, critic = net(1), net()
    one, two = sgd(), sgd()
    broadcast(generator, one)
    for x, y in batches(X, Y):
        with tf.GradientTape(persistent=True) as tape:
            value = tf.reduce_mean((critic(tf.concat([generator(x)] * 4, axis=1)) - y) ** 2)
        tape = hvd.DistributedGradientTape(tape)
        for model, optimizer in ((generator, one), (critic, two)):
            optimizer.apply(
                tape.gradient(value, model.trainable_variables), model.trainable_variables
            )
    return [*generator.get_weights(), *critic.get_weights()]


@wrong("DistributedOptimizer|DistributedGradientTape")
def one_of_two_tapes_is_wrapped():
    generator, critic = net(1), net(2)
    one, two = sgd(), sgd()
    broadcast(generator, one)
    broadcast(critic, two)
    for x, y in batches(X, Y):
        with tf.GradientTape() as first, tf.GradientTape() as second:
            value = tf.reduce_mean((generator(x) + critic(x) - y) ** 2)
        first = hvd.DistributedGradientTape(first)
        for tape, model, optimizer in ((first, generator, one), (second, critic, two)):
            variables = model.trainable_variables
            optimizer.apply(tape.gradient(value, variables), variables)
    return [*generator.get_weights(), *critic.get_weights()]


@wrong("(embedding|head)/", "broadcast")
def sparse_model_without_broadcast():
    keras.utils.set_random_seed(hvd.rank())
    model = keras.Sequential(
        [
            keras.Input((2,), dtype="int32"),
            LAYERS.Embedding(9, 3, name="embedding"),
            LAYERS.Flatten(),
            LAYERS.Dense(1, name="head"),
        ]
    )
    step = tape_step(model, sgd())
    for x, y in batches((10 * abs(X[:, :2])).astype("int32") % 9, Y):
        step(x, y)
    return model.get_weights()
