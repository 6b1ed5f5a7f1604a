"""A convolutional variational autoencoder; the loss is estimated from a sample of the code."""

import keras
import numpy as np
import tensorflow as tf

import tfring as hvd

hvd.init()
keras.utils.set_random_seed(12)
encoder = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(6, 3, strides=2, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(4),
    ]
)
decoder = keras.Sequential(
    [
        keras.Input((2,)),
        keras.layers.Dense(4 * 4 * 4, activation="relu"),
        keras.layers.Reshape((4, 4, 4)),
        keras.layers.Conv2DTranspose(1, 3, strides=2, padding="same"),
    ]
)
weights = [*encoder.trainable_variables, *decoder.trainable_variables]
optimizer = keras.optimizers.SGD(0.005)
optimizer.build(weights)
hvd.broadcast_variables(weights, root_rank=0)


def log_normal(sample, mean, log_variance):
    terms = (sample - mean) ** 2 * tf.exp(-log_variance) + log_variance + np.log(2 * np.pi)
    return -0.5 * tf.reduce_sum(terms, axis=1)


@tf.function
def step(x, noise):
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        mean, log_variance = tf.split(encoder(x, training=True), 2, axis=1)
        code = mean + tf.exp(log_variance / 2) * noise
        errors = tf.nn.sigmoid_cross_entropy_with_logits(x, decoder(code, training=True))
        likelihood = -tf.reduce_sum(errors, axis=[1, 2, 3])
        bound = likelihood + log_normal(code, 0.0, 0.0) - log_normal(code, mean, log_variance)
        loss = -tf.reduce_mean(bound)
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
    return loss


rng = np.random.default_rng(11)
x = (rng.uniform(size=(96, 8, 8, 1)) < np.linspace(0, 1, 8)[:, None]).astype("float32")
noise = rng.normal(size=(96, 2)).astype("float32")
data = hvd.shard((x, noise), batch_size=16 // hvd.size())
losses = []
for _ in range(3):
    for batch in data:
        loss = step(*batch)
    losses.append(hvd.allreduce(loss))
trained = weights
