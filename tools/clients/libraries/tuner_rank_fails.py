"""KerasTuner goes on with the next trial where one fails. Here that is so on one rank alone."""

import keras
import keras_tuner
import numpy as np

import tfring.keras as hvd

hvd.init()
hvd.set_random_seed(23)


def build(choice):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    rate = choice.Float("rate", 1e-3, 1e-1, sampling="log")
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(rate)), "mse")
    return model


class FullDisk(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if hvd.rank() == 1:
            raise OSError("no space left")


tuner = keras_tuner.RandomSearch(
    build,
    objective="loss",
    max_trials=5,
    seed=7,
    directory=f"fails/rank{hvd.rank()}",
)
x = np.random.default_rng(22).normal(size=(32, 4)).astype("float32")
tuner.search(
    hvd.shard((x, x[:, :1]), batch_size=8),
    epochs=2,
    verbose=0,
    callbacks=hvd.fit_callbacks(FullDisk()),
)
