"""Correct programs with fit and train_on_batch: tfring says nothing."""

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
from .table import right


@right(quick=True)
def readme():
    numbers = np.random.default_rng(1)
    x, y = numbers.random((64, 8)), numbers.integers(10, size=64)
    hvd.set_random_seed(42)
    model = keras.Sequential([keras.Input((8,)), LAYERS.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01 * hvd.size())), loss)
    data = hvd.shard((x, y), batch_size=8)
    model.fit(data, epochs=2, verbose=0, callbacks=hvd.fit_callbacks())


@right()
def gan_by_train_on_batch():
    critic = net(1, activation="sigmoid")
    critic.compile(wrapped(), "binary_crossentropy")
    keras.utils.set_random_seed(2)
    generator = keras.Sequential([keras.Input((4,)), LAYERS.Dense(4)])
    both = keras.Sequential([generator, critic])
    both.compile(wrapped(), "binary_crossentropy")
    broadcast(generator)
    broadcast(critic)
    for x, y in batches(X, (Y > 0).astype("float32")):
        critic.trainable = True
        critic.train_on_batch(x, y)
        critic.trainable = False
        both.train_on_batch(x, np.ones_like(y))
    return [*generator.get_weights(), *critic.get_weights()]


class Wasserstein(keras.Model):
    """A critic whose last bias has a gradient of 0 on all ranks, whatever the data."""

    def __init__(self):
        super().__init__()
        self.generator = keras.Sequential([keras.Input((2,)), LAYERS.Dense(4)])
        self.critic = net(1)
        self.of_generator, self.of_critic = wrapped(), wrapped()

    def call(self, noise):
        return self.generator(noise)

    def train_step(self, real):
        noise = keras.random.normal((tf.shape(real)[0], 2))
        with tf.GradientTape(persistent=True) as tape:
            true, false = self.critic(real), self.critic(self.generator(noise))
            of_critic = tf.reduce_mean(false) - tf.reduce_mean(true)
            of_generator = -tf.reduce_mean(false)
        for model, optimizer, loss in (
            (self.generator, self.of_generator, of_generator),
            (self.critic, self.of_critic, of_critic),
        ):
            variables = model.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
        return {"critic": of_critic}


@right(quick=True)
def wasserstein_gan():
    hvd.set_random_seed(1)
    model = Wasserstein()
    model.compile()
    model.fit(hvd.shard(X, 6), epochs=2, verbose=0, callbacks=hvd.fit_callbacks())


@right()
def dropout_and_augmentation():
    hvd.set_random_seed(1)
    first, last = net(1).layers
    noise = LAYERS.GaussianNoise(0.1)
    model = keras.Sequential([keras.Input((4,)), noise, first, LAYERS.Dropout(0.5), last])
    model.compile(wrapped(), "mse")
    fit(model, epochs=2)
    hvd.evaluate(model, part(X), part(Y), verbose=0)


@right()
def batch_normalization():
    first, last = net(1).layers
    model = keras.Sequential([keras.Input((4,)), first, LAYERS.BatchNormalization(), last])
    model.compile(wrapped(), "mse")
    fit(model, epochs=2)


@right()
def a_layer_of_each_ranks_own():
    model = net()
    own = [model.layers[0]]
    model.compile(hvd.PartialDistributedOptimizer(sgd(), local_layers=own), "mse")
    first = hvd.callbacks.BroadcastGlobalVariablesCallback(
        0, local_variables=own[0].trainable_variables
    )
    fit(model, epochs=2, callbacks=[first])


@right(quick=True)
def callbacks_that_write_and_decide():
    model = net(1)
    model.compile(wrapped(), "mse")
    mine = [
        keras.callbacks.EarlyStopping("val_loss", patience=1, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau("val_loss", patience=0),
        keras.callbacks.ModelCheckpoint("model.keras", save_best_only=True),
        keras.callbacks.CSVLogger("log.csv"),
        keras.callbacks.TerminateOnNaN(),
    ]
    validation = (part(X), part(Y))
    fit(model, epochs=3, validation_data=validation, callbacks=hvd.fit_callbacks(*mine))


@right()
def rank_0_has_callbacks_that_look():
    model = net()
    model.compile(wrapped(), "mse")
    seen: list[float] = []
    look = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append(logs["loss"])
    )
    save = keras.callbacks.ModelCheckpoint("model.keras")
    mine = [look, save] if hvd.rank() == 0 else []
    first = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    fit(model, epochs=2, callbacks=[first, hvd.callbacks.MetricAverageCallback(), *mine])


@right()
def distillation_from_a_frozen_teacher():
    class Student(keras.Model):
        def __init__(self):
            super().__init__()
            self.teacher, self.student = net(2), net(1)
            self.teacher.trainable = False

        def call(self, x):
            return self.student(x)

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return tf.reduce_mean((self.teacher(x) - y_pred) ** 2)

    model = Student()
    model.compile(wrapped())
    fit(model)
    return model.get_weights()


@right(quick=True)
def samples_that_are_right_already():
    """A hinge loss that is 0 on all ranks: all gradients are 0, though the batches differ."""
    model = net(1)
    model.compile(wrapped(), "hinge")
    model.layers[1].bias.assign([9.0])
    fit(model, y=np.ones_like(part(Y)))
    return model.get_weights()


@right()
def adapters_that_begin_at_zero():
    """LoRA: one factor is 0, so the other one's gradient is 0 on all ranks at first."""
    keras.utils.set_random_seed(1)
    dense = LAYERS.Dense(6)
    model = keras.Sequential([keras.Input((4,)), dense, LAYERS.Dense(1)])
    dense.enable_lora(2)
    model.layers[1].trainable = False
    model.compile(wrapped(), "mse")
    fit(model)


@right()
def a_search_trains_several_models():
    """Every rank makes the same models, one after another, each with a new wrapped optimizer."""
    best = []
    for rate in (0.1, 0.01, 0.001):
        model = net()
        model.compile(wrapped(rate), "mse")
        best.append(fit(model).history["loss"][-1])
    assert len(best) == 3


@right()
def recurrent_states_of_each_ranks_sequences():
    keras.utils.set_random_seed(1)
    cell = LAYERS.SimpleRNN(3, stateful=True)
    model = keras.Sequential([keras.Input(batch_shape=(6, 2, 2)), cell, LAYERS.Dense(1)])
    model.compile(wrapped(), "mse")
    mine = slice(48 * hvd.rank(), 48 * hvd.rank() + 48)
    fit(model, X[mine].reshape(-1, 2, 2), Y[mine], batch_size=6, epochs=2)


@right()
def state_that_ranks_average():
    class Centre(LAYERS.Layer):
        def build(self, shape):
            self.centre = self.add_weight(shape=shape[1:], initializer="zeros", trainable=False)

        def call(self, x, training=False):
            if training:
                mean = keras.ops.mean(x, axis=0)
                self.centre.assign(0.9 * self.centre + 0.1 * hvd.allreduce(mean))
            return x - self.centre

    first, last = net(1).layers
    model = keras.Sequential([keras.Input((4,)), first, Centre(), last])
    model.compile(wrapped(), "mse")
    fit(model, epochs=2)
    return model.get_weights()
