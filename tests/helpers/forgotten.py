"""A program of several ranks that forgets one thing; its argument says which."""

from __future__ import annotations

import sys

import keras
import numpy as np

import tfring.keras as hvd

hvd.init()
hvd.set_random_seed(3)
X = np.random.default_rng(hvd.rank()).normal(size=(16, 4)).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)

if sys.argv[1] == "reload":
    layers = [keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)]
    trained = keras.Sequential(layers)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01))
    trained.compile(optimizer, "mse", jit_compile=False)
    trained.fit(X, Y, batch_size=4, verbose=0, callbacks=hvd.fit_callbacks())
    path = f"{sys.argv[2]}/model-{hvd.rank()}.keras"
    trained.save(path)
    keras.saving.load_model(path).train_on_batch(X, Y)
else:  # Keras 2
    import tf_keras

    hvd.init()  # Keras 2 has been loaded since
    plain = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(4,))])
    plain.compile(tf_keras.optimizers.SGD(0.01), "mse")
    plain.fit(X, Y, batch_size=4, verbose=0)
