"""A class that is rare: weights of classes, counts and areas as metrics, an early end."""

import keras
import numpy as np

import tfring.keras as hvd

hvd.init()
hvd.set_random_seed(14)
rng = np.random.default_rng(13)
x = rng.normal(size=(400, 6)).astype("float32")
y = (x[:, :1] > 1.2).astype("float32")  # about a tenth
n = 320  # the rest is for validation
rate = y[:n].mean()

model = keras.Sequential(
    [
        keras.Input((6,)),
        keras.layers.Dense(12, activation="relu"),
        keras.layers.Dense(
            1,
            activation="sigmoid",
            bias_initializer=keras.initializers.Constant(np.log(rate / (1 - rate))),
        ),
    ]
)
model.compile(
    hvd.DistributedOptimizer(keras.optimizers.SGD(0.2)),
    "binary_crossentropy",
    metrics=[
        keras.metrics.TruePositives(name="found"),
        keras.metrics.Precision(name="precision"),
        keras.metrics.AUC(name="area"),
        keras.metrics.AUC(name="area_pr", curve="PR"),
    ],
)
mine = slice(n + hvd.rank(), None, hvd.size())
history = model.fit(
    hvd.shard((x[:n], y[:n]), batch_size=64 // hvd.size()),
    epochs=12,
    verbose=0,
    class_weight={0: 0.5 / (1 - rate), 1: 0.5 / rate},
    validation_data=(x[mine], y[mine]),
    callbacks=hvd.fit_callbacks(
        keras.callbacks.EarlyStopping("val_area_pr", mode="max", patience=3)
    ),
)
trained = model.weights
losses = [value for name in sorted(history.history) for value in history.history[name]]
