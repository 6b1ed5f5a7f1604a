"""Programs whose optimizer is not wrapped, loses its wrapper, or is wrapped twice."""

from __future__ import annotations

import keras
import tensorflow as tf

import tfring.keras as hvd

from .common import LAYERS, X, Y, batches, broadcast, fit, net, plain, sgd, tape_step, wrapped
from .table import wrong

WRAP = "DistributedOptimizer"


@wrong(WRAP, at_end=True, quick=True)
def plain_optimizer_in_fit():
    model = net(1)
    model.compile(sgd(), "mse")
    fit(model, callbacks=[])
    return model.get_weights()


@wrong(WRAP)
def plain_optimizer_in_fit_with_callbacks():
    model = net(1)
    model.compile(sgd(), "mse")
    fit(model)
    return model.get_weights()


@wrong("DistributedGradientTape|DistributedOptimizer", at_end=True)
def tape_not_wrapped():
    model, optimizer = net(1), sgd()
    broadcast(model, optimizer)
    step = tape_step(model, optimizer, wrap=plain)
    for x, y in batches(X, Y):
        step(x, y)
    return model.get_weights()


@wrong(WRAP)
def wrapped_one_is_not_the_one_that_is_compiled():
    model = net(1)
    optimizer = sgd()
    hvd.DistributedOptimizer(sgd())
    model.compile(optimizer, "mse")
    fit(model, callbacks=[])
    return model.get_weights()


@wrong("load_model|" + WRAP, quick=True)
def reloaded_by_keras_then_train_on_batch():
    model = net(1)
    model.compile(wrapped(), "mse")
    every = list(batches(X, Y))
    for x, y in every[:4]:
        model.train_on_batch(x, y)
    path = f"model-{hvd.rank()}.keras"
    model.save(path)
    model = keras.saving.load_model(path)
    for x, y in every[4:]:
        model.train_on_batch(x, y)
    return model.get_weights()


@wrong(WRAP)
def compiled_again_with_a_plain_optimizer():
    model = net(1)
    model.compile(wrapped(), "mse")
    fit(model)
    model.compile(sgd(0.01), "mse")  # fine-tuning at a lower rate
    fit(model, callbacks=[])
    return model.get_weights()


@wrong(WRAP)
def two_models_and_one_wrapped():
    """A GAN by train_on_batch; the second optimizer was forgotten."""
    critic = net(1, activation="sigmoid")
    critic.compile(wrapped(), "binary_crossentropy")
    keras.utils.set_random_seed(2)
    generator = keras.Sequential([keras.Input((4,)), LAYERS.Dense(4)])
    both = keras.Sequential([generator, critic])
    both.compile(sgd(), "binary_crossentropy")
    for x, y in batches(X, (Y > 0).astype("float32")):
        critic.trainable = True
        critic.train_on_batch(x, y)
        critic.trainable = False
        both.train_on_batch(x, y)
    return [*generator.get_weights(), *critic.get_weights()]


@wrong(WRAP)
def two_optimizers_in_a_train_step_and_one_wrapped():
    class Both(keras.Model):
        def __init__(self):
            super().__init__()
            self.left, self.right = net(1), net(2)
            self.first = wrapped()
            self.second = sgd()

        def call(self, x):
            return self.left(x) + self.right(x)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape(persistent=True) as tape:
                loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
            for model, optimizer in ((self.left, self.first), (self.right, self.second)):
                variables = model.trainable_variables
                optimizer.apply(tape.gradient(loss, variables), variables)
            return {"loss": loss}

    model = Both()
    model.compile()
    fit(model)
    return model.get_weights()


@wrong("reduced|DistributedOptimizer")
def updates_written_by_hand_in_a_train_step():
    class Mine(keras.Sequential):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
            gradients = tape.gradient(loss, self.trainable_variables)
            for gradient, variable in zip(gradients, self.trainable_variables, strict=True):
                variable.assign_sub(0.1 * gradient)
            return {"loss": loss}

    model = Mine(net(1).layers)
    model.compile(wrapped())
    fit(model)
    return model.get_weights()


@wrong("reduced none", "DistributedGradientTape", at_end=True)
def resumed_with_a_step_that_was_traced_before():
    model = net(1)
    optimizer = sgd()
    optimizer.build(model.trainable_variables)
    broadcast(model, optimizer)
    step = tape_step(model, optimizer, wrap=plain)
    every = list(batches(X, Y))
    step(X[:6], Y[:6])  # the same on all ranks: a trial run
    hvd.DistributedOptimizer(optimizer, resumed=True)
    for x, y in every:
        step(x, y)
    return model.get_weights()


@wrong(quick=True)
def resumed_with_a_train_function_that_was_traced_before():
    model = net(1)
    model.compile(sgd(), "mse")
    model.train_on_batch(X[:6], Y[:6])
    hvd.DistributedOptimizer(model.optimizer, resumed=True)
    for x, y in batches(X, Y):
        model.train_on_batch(x, y)
    return model.get_weights()


@wrong("wrap the tape or the optimizer|twice|not both|already")
def tape_and_optimizer_both_wrapped():
    model, optimizer = net(1), wrapped()
    broadcast(model, optimizer)
    step = tape_step(model, optimizer)
    for x, y in batches(X, Y):
        step(x, y)
    return model.get_weights()


@wrong("twice|already|DistributedOptimizer")
def gradients_averaged_by_hand_and_by_the_optimizer():
    model, optimizer = net(1), wrapped()
    broadcast(model, optimizer)

    class Averaging(tf.GradientTape):
        def gradient(self, *arguments, **options):
            return [hvd.allreduce(g) for g in super().gradient(*arguments, **options)]

    step = tape_step(model, optimizer, wrap=lambda _: Averaging())
    for x, y in batches(X, Y):
        step(x, y)
    return model.get_weights()


@wrong()
def optimizer_around_a_wrapped_one():
    class Lookahead(keras.optimizers.Optimizer):
        def __init__(self, inner):
            super().__init__(learning_rate=0.1)
            self.inner = inner

        def apply(self, grads, trainable_variables=None):
            return self.inner.apply(grads, trainable_variables)

    model = net(1)
    model.compile(Lookahead(wrapped()), "mse")
    fit(model)
    return model.get_weights()


@wrong("learning.rate", "rank 1")
def learning_rates_differ_in_fit():
    model = net(1)
    model.compile(wrapped(0.1 * (1 + hvd.rank())), "mse")
    fit(model)
    return model.get_weights()


@wrong("learning.rate|(hidden|head)/(kernel|bias)", "broadcast|same")
def learning_rates_differ_in_a_loop():
    model, optimizer = net(1), sgd(0.1 * (1 + hvd.rank()))
    optimizer.build(model.trainable_variables)
    hvd.broadcast_variables(model.weights, root_rank=0)
    step = tape_step(model, optimizer)
    for x, y in batches(X, Y):
        step(x, y)
    return model.get_weights()


@wrong("learning.rate|(hidden|head)/(kernel|bias)", "broadcast|same")
def schedules_differ_in_train_on_batch():
    """Each rank computes its decay from the length of its own data."""
    model = net(1)
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 4 + 40 * hvd.rank(), 0.1)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(rate)), "mse")
    for x, y in batches(X, Y):
        model.train_on_batch(x, y)
    return model.get_weights()
