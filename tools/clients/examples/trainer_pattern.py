"""A trainer that takes any model and has a training step and metrics of its own."""

import keras
import numpy as np
import tensorflow as tf

import tfring.keras as hvd

hvd.init()
hvd.set_random_seed(3)


class Trainer(keras.Model):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.mean_error = keras.metrics.MeanAbsoluteError(name="mean_error")

    def call(self, inputs, training=False):
        return self.inner(inputs, training=training)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            found = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=found)
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        self.mean_error.update_state(y, found)
        return {"loss": loss, "mean_error": self.mean_error.result()}


x = np.random.default_rng(2).normal(size=(128, 6)).astype("float32")
y = np.sin(x.sum(axis=1, keepdims=True))
model = Trainer(
    keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(1)]
    )
)
model.compile(hvd.DistributedOptimizer(keras.optimizers.RMSprop(0.01, epsilon=1e-3)), "mse")
data = hvd.shard((x, y), batch_size=32 // hvd.size())
history = model.fit(data, epochs=3, verbose=0, callbacks=hvd.fit_callbacks())
trained = model.weights
losses = history.history["mean_error"]
