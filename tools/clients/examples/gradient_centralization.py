"""An optimizer of the program's own, which takes the mean from each gradient of a matrix."""

import keras
import numpy as np

import tfring.keras as hvd

hvd.init()
hvd.set_random_seed(9)


class CentredRMSprop(keras.optimizers.RMSprop):
    def update_step(self, gradient, variable, learning_rate):
        if len(gradient.shape) > 1:
            axes = list(range(len(gradient.shape) - 1))
            gradient = gradient - keras.ops.mean(gradient, axis=axes, keepdims=True)
        super().update_step(gradient, variable, learning_rate)


rng = np.random.default_rng(8)
x = rng.normal(size=(128, 8, 8, 1)).astype("float32")
y = (x.mean(axis=(1, 2)) > 0).astype("float32")
model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(6, 3, activation="relu"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(hvd.DistributedOptimizer(CentredRMSprop(0.005, epsilon=1e-3)), "binary_crossentropy")
data = hvd.shard((x, y), batch_size=32 // hvd.size())
history = model.fit(data, epochs=3, verbose=0, callbacks=hvd.fit_callbacks())
trained = model.weights
losses = history.history["loss"]
