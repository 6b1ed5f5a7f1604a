"""Classifies waves by their frequency; batches are normalised, the best model is kept."""

import keras
import numpy as np

import tfring.keras as hvd

hvd.init()
hvd.set_random_seed(2)
rng = np.random.default_rng(1)
y = rng.integers(0, 2, 192)
times = np.linspace(0, 6, 40)
waves = np.sin(times * (1 + y[:, None]) + rng.uniform(0, 6, (192, 1)))
x = (waves + rng.normal(0, 0.2, waves.shape)).astype("float32")[..., None]

layers = [keras.Input((40, 1))]
for _ in range(2):
    layers += [
        keras.layers.Conv1D(8, 3, padding="same", use_bias=False),
        hvd.SyncBatchNormalization(),
        keras.layers.ReLU(),
    ]
model = keras.Sequential(
    [*layers, keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(2, activation="softmax")]
)
model.compile(
    hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "sparse_categorical_crossentropy"
)
history = model.fit(
    hvd.shard((x[:160], y[:160]), batch_size=32 // hvd.size()),
    epochs=4,
    verbose=0,
    validation_data=(x[160:], y[160:]),
    callbacks=hvd.fit_callbacks(
        keras.callbacks.ModelCheckpoint("best.keras", save_best_only=True),
        keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1),
    ),
)
hvd.barrier()  # rank 0 has written the file
best = keras.models.load_model("best.keras", compile=False)
trained = [*model.weights, *best.weights]
losses = [*history.history["loss"], *history.history["val_loss"]]
