"""A Wasserstein GAN: three steps of the critic, with a penalty on its gradient, to one step."""

import keras
import numpy as np
import tensorflow as tf

import tfring.keras as hvd

hvd.init()
hvd.set_random_seed(6)
CRITIC_STEPS = 3


def network(inputs, outputs):
    return keras.Sequential(
        [keras.Input((inputs,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(outputs)]
    )


class Wasserstein(keras.Model):
    def __init__(self):
        super().__init__()
        self.generator, self.critic = network(3, 5), network(5, 1)
        self.g_optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.02), name="generator")
        self.c_optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.02), name="critic")

    def penalty(self, real, made, mixture):
        between = real + mixture * (made - real)
        with tf.GradientTape() as tape:
            tape.watch(between)
            value = self.critic(between)
        slope = tf.sqrt(tf.reduce_sum(tape.gradient(value, between) ** 2, axis=1) + 1e-8)
        return tf.reduce_mean((slope - 1) ** 2)

    def train_step(self, data):
        real = data["real"]
        weights = self.critic.trainable_variables
        for turn in range(CRITIC_STEPS):
            made = self.generator(data["noise"][:, turn])
            with tf.GradientTape() as tape:
                gap = tf.reduce_mean(self.critic(made)) - tf.reduce_mean(self.critic(real))
                loss = gap + 10 * self.penalty(real, made, data["mixture"][:, turn])
            self.c_optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        weights = self.generator.trainable_variables
        with tf.GradientTape() as tape:
            value = -tf.reduce_mean(self.critic(self.generator(data["noise"][:, -1])))
        self.g_optimizer.apply_gradients(zip(tape.gradient(value, weights), weights))
        return {"critic": loss, "generator": value}


rng = np.random.default_rng(5)
data = {
    "real": rng.normal(2, 0.5, (96, 5)).astype("float32"),
    "noise": rng.normal(size=(96, CRITIC_STEPS + 1, 3)).astype("float32"),
    "mixture": rng.uniform(size=(96, CRITIC_STEPS, 1)).astype("float32"),
}
model = Wasserstein()
model.compile()
history = model.fit(
    hvd.shard(data, batch_size=32 // hvd.size()),
    epochs=3,
    verbose=0,
    callbacks=hvd.fit_callbacks(),
)
trained = model.weights
losses = [*history.history["critic"], *history.history["generator"]]
