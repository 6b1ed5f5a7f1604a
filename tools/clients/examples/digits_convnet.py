"""Classifies small pictures of two shapes with a convolutional network."""

import keras
import numpy as np

import tfring.keras as hvd

hvd.init()
hvd.set_random_seed(1)
rng = np.random.default_rng(0)
y = rng.integers(0, 4, 256)
x = rng.normal(0, 0.3, (256, 12, 12, 1)).astype("float32")
for picture, label in zip(x, y):  # a bright bar whose place is the label
    picture[:, 3 * label : 3 * label + 2] += 1
n = 224  # the rest is for validation

model = keras.Sequential(
    [
        keras.Input((12, 12, 1)),
        keras.layers.Conv2D(8, 3, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(4, activation="softmax"),
    ]
)
model.compile(
    hvd.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9)),
    "sparse_categorical_crossentropy",
    metrics=["accuracy"],
)
history = model.fit(
    hvd.shard((x[:n], y[:n]), batch_size=32 // hvd.size()),
    epochs=3,
    verbose=0,
    validation_data=(x[n:], y[n:]),
    callbacks=hvd.fit_callbacks(),
)
trained = model.weights
losses = [*history.history["loss"], *history.history["accuracy"], *history.history["val_loss"]]
