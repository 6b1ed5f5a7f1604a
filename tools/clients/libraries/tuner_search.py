"""KerasTuner: every rank makes the same trials, each with a folder of its own."""

import keras
import keras_tuner
import numpy as np

import tfring.keras as hvd

hvd.init()
hvd.set_random_seed(22)
x = np.random.default_rng(21).normal(size=(128, 8)).astype("float32")
y = x.sum(axis=1, keepdims=True)


def build(choice):
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(choice.Int("units", 4, 32, step=4), activation="relu"),
            keras.layers.Dense(1),
        ]
    )
    rate = choice.Float("rate", 1e-3, 1e-1, sampling="log")
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(rate)), "mse")
    return model


tuner = keras_tuner.RandomSearch(
    build,
    objective="val_loss",
    max_trials=3,
    seed=7,
    directory=f"search/{hvd.size()}/rank{hvd.rank()}",
)
tuner.search(
    hvd.shard((x[:96], y[:96]), batch_size=32 // hvd.size()),
    epochs=2,
    validation_data=(x[96:], y[96:]),
    verbose=0,
    callbacks=hvd.fit_callbacks(),
)
trained = tuner.get_best_models(1)[0].weights
losses = [trial.score for trial in tuner.oracle.get_best_trials(3)]
