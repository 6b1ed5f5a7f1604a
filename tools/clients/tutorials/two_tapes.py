"""A generative network and a discriminator with a tape and an optimizer each, in one function."""

import keras
import numpy as np
import tensorflow as tf

import tfring as hvd

hvd.init()
keras.utils.set_random_seed(15)
generator = keras.Sequential(
    [
        keras.Input((4,)),
        keras.layers.Dense(3 * 3 * 4, use_bias=False),
        hvd.SyncBatchNormalization(),
        keras.layers.LeakyReLU(),
        keras.layers.Reshape((3, 3, 4)),
        keras.layers.Conv2DTranspose(1, 3, strides=2, padding="same", activation="tanh"),
    ]
)
discriminator = keras.Sequential(
    [
        keras.Input((6, 6, 1)),
        keras.layers.Conv2D(6, 3, strides=2, padding="same"),
        keras.layers.LeakyReLU(),
        keras.layers.Flatten(),
        keras.layers.Dense(1),
    ]
)
pairs = [(each, keras.optimizers.SGD(0.05)) for each in (generator, discriminator)]
for network, optimizer in pairs:
    optimizer.build(network.trainable_variables)
    hvd.broadcast_variables([*network.weights, *optimizer.variables], root_rank=0)
score = keras.losses.BinaryCrossentropy(from_logits=True)


@tf.function
def step(real, noise):
    with tf.GradientTape() as first, tf.GradientTape() as second:
        true = discriminator(real, training=True)
        false = discriminator(generator(noise, training=True), training=True)
        cheating = score(tf.ones_like(false), false)
        telling = score(tf.ones_like(true), true) + score(tf.zeros_like(false), false)
    for (network, optimizer), tape, loss in zip(pairs, (first, second), (cheating, telling)):
        tape = hvd.DistributedGradientTape(tape)
        weights = network.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
    return tf.stack([cheating, telling])


rng = np.random.default_rng(14)
real = np.tanh(rng.normal(0.5, 0.3, (96, 6, 6, 1))).astype("float32")
noise = rng.normal(size=(96, 4)).astype("float32")
losses = []
for _ in range(3):
    for batch in hvd.shard((real, noise), batch_size=32 // hvd.size()):
        both = step(*batch)
    losses += list(hvd.allreduce(both).numpy())
trained = [*generator.weights, *discriminator.weights]
