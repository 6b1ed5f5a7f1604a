"""Reptile: weights from which few steps learn any of a family of waves, in a loop of its own."""

import keras
import numpy as np
import tensorflow as tf

import tfring.keras as hvd

hvd.init()
hvd.set_random_seed(10)
model = keras.Sequential(
    [keras.Input((1,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(1)]
)
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05))
hvd.broadcast_variables(model.weights, root_rank=0)


@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
    weights = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
    return loss


rng = np.random.default_rng(9)
losses = []
for turn in range(8):
    before = model.get_weights()
    x = rng.uniform(-3, 3, (64, 1)).astype("float32")
    y = np.sin(x + rng.uniform(0, 3)).astype("float32")
    for batch in hvd.shard((x, y), batch_size=16 // hvd.size()):
        loss = step(*batch)
    losses.append(hvd.allreduce(loss))
    part = 0.5 * (1 - turn / 8)
    after = model.get_weights()
    model.set_weights([old + part * (new - old) for old, new in zip(before, after)])
trained = model.weights
