"""Regression on a table whose columns have different scales, with a Normalization layer."""

import keras
import numpy as np

import tfring.keras as hvd

hvd.init()
hvd.set_random_seed(13)
rng = np.random.default_rng(12)
x = rng.normal([0, 20, 3000], [1, 5, 700], (160, 3)).astype("float32")
y = (x @ [[1.0], [0.3], [0.002]]).astype("float32")
n = 128  # the rest is for validation

normalization = keras.layers.Normalization()
normalization.adapt(x[:n])  # every rank has all of the data here
model = keras.Sequential(
    [
        keras.Input((3,)),
        normalization,
        keras.layers.Dense(16, activation="relu"),
        keras.layers.Dense(1),
    ]
)
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mean_squared_error")
history = model.fit(
    hvd.shard((x[:n], y[:n]), batch_size=32 // hvd.size()),
    epochs=4,
    verbose=0,
    validation_data=(x[n:], y[n:]),
    callbacks=hvd.fit_callbacks(),
)
trained = model.weights
losses = [*history.history["loss"], *history.history["val_loss"]]
