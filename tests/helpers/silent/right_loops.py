"""Correct custom loops: tfring says nothing."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import tfring.keras as hvd

from .common import LAYERS, X, Y, batches, broadcast, loop, net, plain, sgd, tape_step
from .table import right


@right(quick=True)
def the_usual_loop():
    model, optimizer = net(), keras.optimizers.Adam(0.01)
    broadcast(model, optimizer)
    loop(model, optimizer)


@right()
def broadcast_after_the_first_step():
    """As in Horovod's examples: the optimizer has no state before."""
    model, optimizer = net(), keras.optimizers.Adam(0.01)
    step = tape_step(model, optimizer)
    for number, (x, y) in enumerate(batches(X, Y)):
        step(x, y)
        if number == 0:
            hvd.broadcast_variables([*model.weights, *optimizer.variables], root_rank=0)
    hvd.assert_equal(model.weights)


@right(quick=True)
def weights_averaged_now_and_then():
    """Local SGD: a plain optimizer, and averaged weights after every fourth step."""
    model, optimizer = net(1), sgd()
    broadcast(model, optimizer)
    step = tape_step(model, optimizer, wrap=plain)
    for number, (x, y) in enumerate(batches(X, Y)):
        step(x, y)
        if number % 4 == 3:
            for index, variable in enumerate(model.trainable_variables):
                variable.assign(hvd.allreduce(variable.value, name=f"w{index}"))


@right()
def gradients_reduced_by_hand_in_a_function():
    model, optimizer = net(1), sgd()
    broadcast(model, optimizer)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            value = tf.reduce_mean((model(x) - y) ** 2)
        gradients = tape.gradient(value, model.trainable_variables)
        gradients = [hvd.allreduce(g) for g in gradients]
        optimizer.apply(gradients, model.trainable_variables)

    for x, y in batches(X, Y):
        step(x, y)
    return model.get_weights()


@right(quick=True)
def data_that_runs_out_earlier_on_one_rank():
    model, optimizer = net(1), sgd()
    broadcast(model, optimizer)
    step = tape_step(model, optimizer)
    for number, (x, y) in enumerate(batches(X, Y)):
        if number < 5 + 2 * hvd.rank():
            step(x, y)
    last = hvd.join()
    hvd.broadcast_variables([*model.weights, *optimizer.variables], root_rank=last)


@right()
def process_sets_of_single_ranks():
    """Each rank trains its own model on purpose, in its own process set."""
    sets = [hvd.add_process_set([rank]) for rank in range(hvd.size())]
    model, optimizer = net(), sgd()
    mine = sets[hvd.rank()]
    for x, y in batches(X, Y):
        with tf.GradientTape() as tape:
            value = tf.reduce_mean((model(x) - y) ** 2)
        tape = hvd.DistributedGradientTape(tape, process_set=mine)
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)


@right()
def local_variables_on_a_tape():
    model, optimizer = net(), sgd()
    own = model.layers[0]
    hvd.broadcast_variables(model.layers[1].weights, root_rank=0)
    for x, y in batches(X, Y):
        with tf.GradientTape() as tape:
            value = tf.reduce_mean((model(x) - y) ** 2)
        tape = hvd.PartialDistributedGradientTape(tape, local_layers=[own])
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)


@right()
def gradients_that_do_not_depend_on_the_data():
    """A policy gradient with sparse rewards: no reward yet, so no gradient on any rank."""
    model, optimizer = net(1, outputs=2), sgd()
    broadcast(model, optimizer)
    rewards = np.zeros((len(X),), "float32")
    rewards[-12:] = Y[-12:, 0]

    def loss(reward, p):
        return -tf.reduce_mean(tf.nn.log_softmax(p)[:, 0] * reward)

    step = tape_step(model, optimizer, loss=loss)
    for x, reward in batches(X, rewards):
        step(x, reward)
    return model.get_weights()


@right()
def solver_that_makes_its_own_tape():
    position = tf.Variable([0.0, 0.0])
    for x, _ in batches(X, Y):
        with tf.GradientTape() as tape:
            value = tf.reduce_mean((hvd.replicated(position) - x[:, :2]) ** 2)
        position.assign_sub(0.1 * tape.gradient(value, position))
    return [position.numpy()]


@right()
def a_dummy_step_builds_the_model():
    """The first step is on zeros on all ranks, at a rate of 0."""
    model, optimizer = net(1), sgd()
    optimizer.learning_rate.assign(0.0)
    step = tape_step(model, optimizer)
    step(np.zeros((6, 4), "float32"), np.zeros((6, 1), "float32"))
    optimizer.learning_rate.assign(0.1)
    broadcast(model)
    for x, y in batches(X, Y):
        step(x, y)
    return model.get_weights()


@right()
def a_model_that_only_rank_0_trains():
    """Rank 0 fits a small scaler by itself, before the ranks train together."""
    scale = 1.0
    if hvd.rank() == 0:
        small = keras.Sequential([keras.Input((1,)), LAYERS.Dense(1, use_bias=False)])
        small.compile(sgd(), "mse")
        small.fit(X[:, :1], Y, verbose=0)
        scale = float(small.get_weights()[0][0, 0])
    scale = hvd.broadcast_object(scale, root_rank=0)
    model, optimizer = net(1), sgd()
    broadcast(model, optimizer)
    step = tape_step(model, optimizer)
    for x, y in batches(X, Y):
        step(x, np.float32(scale) * y)
