"""Orbit of the TensorFlow models: its controller runs a training step in a loop of TensorFlow."""

import keras
import numpy as np
import orbit
import tensorflow as tf

import tfring as hvd

hvd.init()
keras.utils.set_random_seed(25)


class Trainer(orbit.StandardTrainer):
    def __init__(self, data):
        super().__init__(data, orbit.StandardTrainerOptions(use_tf_while_loop=True))
        self.model = keras.Sequential(
            [keras.Input((6,)), keras.layers.Dense(12, activation="tanh"), keras.layers.Dense(1)]
        )
        self.optimizer = keras.optimizers.SGD(0.05)
        self.optimizer.build(self.model.trainable_variables)
        self.mean, self.steps = tf.Variable(0.0), tf.Variable(0, dtype=tf.int64)
        hvd.broadcast_variables([*self.model.weights, *self.optimizer.variables], root_rank=0)

    def train_step(self, iterator):
        x, y = next(iterator)
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_mean((self.model(x, training=True) - y) ** 2)
        weights = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        self.mean.assign(loss)
        self.steps.assign_add(1)

    def train_loop_end(self):
        losses.append(hvd.allreduce(self.mean))
        return {"loss": losses[-1]}


x = np.random.default_rng(25).normal(size=(128, 6)).astype("float32")
data = hvd.shard((x, np.tanh(x[:, :1])), batch_size=32 // hvd.size())
losses = []
trainer = Trainer(data.repeat())
controller = orbit.Controller(
    trainer=trainer,
    global_step=trainer.steps,
    steps_per_loop=4,
)
controller.train(steps=12)
trained = trainer.model.weights
