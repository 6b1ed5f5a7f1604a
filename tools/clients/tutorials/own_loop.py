"""A model class, a compiled training step and metrics in a loop of its own."""

import keras
import numpy as np
import tensorflow as tf

import tfring as hvd

hvd.init()
keras.utils.set_random_seed(11)


class Classifier(keras.Model):
    def __init__(self):
        super().__init__()
        self.convolution = keras.layers.Conv2D(8, 3, activation="relu")
        self.flat = keras.layers.Flatten()
        self.hidden = keras.layers.Dense(16, activation="relu")
        self.answers = keras.layers.Dense(3)

    def call(self, x):
        return self.answers(self.hidden(self.flat(self.convolution(x))))


rng = np.random.default_rng(10)
x = rng.normal(size=(128, 6, 6, 1)).astype("float32")
y = x[:, :3, 0, 0].argmax(axis=1)
model = Classifier()
model(x[:1])
optimizer = keras.optimizers.Adam(0.005, epsilon=1e-3)
optimizer.build(model.trainable_variables)
hvd.broadcast_variables([*model.weights, *optimizer.variables], root_rank=0)
compute_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@tf.function
def step(images, labels):
    with tf.GradientTape() as tape:
        loss = compute_loss(labels, model(images, training=True))
    tape = hvd.DistributedGradientTape(tape)
    weights = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
    return loss


data = hvd.shard((x, y), batch_size=32 // hvd.size())
losses = []
for _ in range(3):
    mean = keras.metrics.Mean()
    for images, labels in data:
        mean.update_state(step(images, labels))
    losses.append(hvd.allreduce(mean.result()))
trained = model.weights
