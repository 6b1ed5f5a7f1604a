"""A generative network against a discriminator in one training step; noise is part of the data."""

import keras
import numpy as np
import tensorflow as tf

import tfring.keras as hvd

hvd.init()
hvd.set_random_seed(5)


class Gan(keras.Model):
    def __init__(self):
        super().__init__()
        self.generator = keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Dense(4 * 4 * 4),
                keras.layers.Reshape((4, 4, 4)),
                keras.layers.Conv2DTranspose(4, 4, strides=2, padding="same", activation="relu"),
                keras.layers.Conv2D(1, 3, padding="same"),
            ]
        )
        self.discriminator = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                keras.layers.Conv2D(8, 4, strides=2, padding="same"),
                keras.layers.LeakyReLU(),
                keras.layers.Flatten(),
                keras.layers.Dense(1),
            ]
        )

    def compile(self, generator_optimizer, discriminator_optimizer):
        super().compile()
        self.generator_optimizer = generator_optimizer
        self.discriminator_optimizer = discriminator_optimizer
        self.score = keras.losses.BinaryCrossentropy(from_logits=True)

    def train_step(self, data):
        real, noise = data["real"], data["noise"]
        answers = tf.concat([tf.ones_like(real[:, 0, 0]), tf.zeros_like(real[:, 0, 0])], axis=0)
        pictures = tf.concat([real, self.generator(noise)], axis=0)
        with tf.GradientTape() as tape:
            loss = self.score(answers, self.discriminator(pictures))
        weights = self.discriminator.trainable_variables
        self.discriminator_optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        with tf.GradientTape() as tape:
            found = self.discriminator(self.generator(noise))
            cheating = self.score(tf.ones_like(found), found)
        weights = self.generator.trainable_variables
        self.generator_optimizer.apply_gradients(zip(tape.gradient(cheating, weights), weights))
        return {"loss": loss, "cheating": cheating}


rng = np.random.default_rng(4)
real = rng.normal(1, 0.2, (96, 8, 8, 1)).astype("float32")
noise = rng.normal(size=(96, 4)).astype("float32")
model = Gan()
model.compile(
    hvd.DistributedOptimizer(keras.optimizers.SGD(0.05), name="generator"),
    hvd.DistributedOptimizer(keras.optimizers.SGD(0.05), name="discriminator"),
)
data = hvd.shard({"real": real, "noise": noise}, batch_size=32 // hvd.size())
history = model.fit(data, epochs=3, verbose=0, callbacks=hvd.fit_callbacks())
trained = model.weights
losses = [*history.history["loss"], *history.history["cheating"]]
