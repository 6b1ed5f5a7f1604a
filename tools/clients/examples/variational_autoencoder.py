"""A variational autoencoder. The noise of each sample is part of the data."""

import keras
import numpy as np
import tensorflow as tf

import tfring.keras as hvd

hvd.init()
hvd.set_random_seed(4)


class Autoencoder(keras.Model):
    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential(
            [keras.Input((16,)), keras.layers.Dense(12, activation="tanh"), keras.layers.Dense(4)]
        )
        self.decoder = keras.Sequential(
            [keras.Input((2,)), keras.layers.Dense(12, activation="tanh"), keras.layers.Dense(16)]
        )

    def train_step(self, data):
        with tf.GradientTape() as tape:
            mean, log_variance = tf.split(self.encoder(data["x"]), 2, axis=1)
            code = mean + tf.exp(log_variance / 2) * data["noise"]
            error = tf.reduce_sum((self.decoder(code) - data["x"]) ** 2, axis=1)
            spread = 1 + log_variance - mean**2 - tf.exp(log_variance)
            loss = tf.reduce_mean(error - 0.5 * tf.reduce_sum(spread, axis=1))
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return {"bound": loss}


rng = np.random.default_rng(3)
x = np.sin(rng.uniform(0, 6, (128, 1)) + np.arange(16) * 0.4).astype("float32")
noise = rng.normal(size=(128, 2)).astype("float32")
model = Autoencoder()
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01, epsilon=1e-2)))
data = hvd.shard({"x": x, "noise": noise}, batch_size=32 // hvd.size())
history = model.fit(data, epochs=3, verbose=0, callbacks=hvd.fit_callbacks())
trained = model.weights
losses = history.history["bound"]
