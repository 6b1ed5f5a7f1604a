"""Programs about the weights with which ranks begin or go on."""

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
    loop,
    net,
    plain,
    sgd,
    wrapped,
)
from .table import wrong

NAME = "(hidden|head)/(kernel|bias)"
BROADCAST = "fit_callbacks|broadcast_variables"


@wrong(NAME, BROADCAST)
def fit_without_callbacks():
    model = net()
    model.compile(wrapped(), "mse")
    fit(model, callbacks=[])
    return model.get_weights()


@wrong(NAME, BROADCAST, quick=True)
def loop_without_broadcast():
    return loop(net(), sgd())


@wrong(NAME, BROADCAST)
def states_of_an_unbuilt_optimizer_are_all_that_is_sent():
    model, optimizer = net(), keras.optimizers.Adam(0.01)
    hvd.broadcast_variables(optimizer.variables, root_rank=0)
    return loop(model, optimizer)


@wrong("dense(_1)?/(kernel|bias)", BROADCAST)
def broadcast_before_the_model_is_built():
    keras.utils.set_random_seed(hvd.rank())
    model = keras.Sequential([LAYERS.Dense(6, activation="tanh"), LAYERS.Dense(1)])
    hvd.broadcast_variables(model.weights, root_rank=0)
    with_step = sgd()
    for x, y in batches(X, Y):
        with tf.GradientTape() as tape:
            value = tf.reduce_mean((model(x) - y) ** 2)
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(value, model.trainable_variables)
        with_step.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return model.get_weights()


@wrong(NAME, BROADCAST)
def weights_loaded_on_rank_0_after_the_broadcast():
    model, optimizer = net(1), sgd()
    broadcast(model, optimizer)
    if hvd.rank() == 0:  # "only rank 0 has the file"
        model.set_weights([w + 0.25 for w in model.get_weights()])
    return loop(model, optimizer)


@wrong(NAME + "|momentum", BROADCAST, quick=True)
def optimizer_state_loaded_on_one_rank_in_a_loop():
    model, optimizer = net(1), sgd(momentum=0.9)
    broadcast(model, optimizer)
    if hvd.rank() == 0:
        for variable in optimizer.variables[2:]:
            variable.assign(np.ones(variable.shape))
    return loop(model, optimizer)


@wrong("temperature|tf.Variable|[Vv]ariable", BROADCAST + "|add_weight")
def plain_variable_in_a_layer():
    """A tf.Variable is not a weight of a Keras 3 model, so the broadcast does not send it."""

    class Scaled(keras.Model):
        def __init__(self):
            super().__init__()
            self.net = net(1)
            self.temperature = tf.Variable(1.0 + hvd.rank(), name="temperature")

        def call(self, x):
            return self.net(x) * self.temperature

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
            every = [*self.trainable_variables, self.temperature]
            with_temperature = tape.gradient(loss, every)
            self.optimizer.apply(with_temperature[:-1], self.trainable_variables)
            self.temperature.assign_sub(0.1 * hvd.allreduce(with_temperature[-1]))
            return {"loss": loss}

    model = Scaled()
    model.compile(wrapped())
    fit(model)
    return [*model.get_weights(), model.temperature.numpy()]


@wrong("(DistributedGradientTape|DistributedOptimizer)", at_end=True)
def everything_but_init_forgotten():
    return loop(net(), sgd(), wrap=plain)
