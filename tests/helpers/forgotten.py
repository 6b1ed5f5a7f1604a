"""A program of several ranks that forgets one thing; its argument says which."""

from __future__ import annotations

import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfring.keras as hvd
from tfring import DistributedGradientTape

hvd.init()
hvd.set_random_seed(3)
WHAT = sys.argv[1]
X = np.random.default_rng(hvd.rank()).normal(size=(16, 4)).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)


def build(optimizer: Any) -> Any:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    model.compile(optimizer, "mse", jit_compile=False)
    return model


def loop(reduce: str) -> None:
    model, optimizer = build("sgd"), keras.optimizers.SGD(0.01)

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(X) - Y))
        if reduce == "tape":
            tape = DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        if reduce == "calls":
            gradients = [hvd.allreduce(g) for g in gradients]
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    for _ in range(3):
        step()


if WHAT == "wrap":
    build("sgd").fit(X, Y, batch_size=4, verbose=0)
elif WHAT == "reload":
    trained = build(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)))
    trained.fit(X, Y, batch_size=4, verbose=0, callbacks=hvd.fit_callbacks())
    path = f"{sys.argv[2]}/model-{hvd.rank()}.keras"
    trained.save(path)
    keras.saving.load_model(path).train_on_batch(X, Y)
elif WHAT == "right":
    fitted = build(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)))
    fitted.fit(X, Y, batch_size=4, verbose=0, callbacks=hvd.fit_callbacks())
    fitted.save(f"{sys.argv[2]}/model-{hvd.rank()}.keras")
    loaded = hvd.load_model(f"{sys.argv[2]}/model-{hvd.rank()}.keras")
    loaded.train_on_batch(X, Y)
    loop("tape")
    loop("calls")
elif WHAT == "restored":  # and no more training follows
    restored = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01))
    restored.build(build(restored).trainable_variables)
    restored.iterations.assign(5)
elif WHAT == "calls":
    loop("calls")
elif WHAT in ("keras2", "keras2 legacy", "keras2 right"):
    import tf_keras

    hvd.init()  # Keras 2 has been loaded since
    kinds = tf_keras.optimizers.legacy if WHAT == "keras2 legacy" else tf_keras.optimizers
    plain = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(4,))])
    rate = kinds.SGD(0.01)
    plain.compile(hvd.DistributedOptimizer(rate) if WHAT == "keras2 right" else rate, "mse")
    plain.fit(X, Y, batch_size=4, verbose=0)
else:
    loop("nothing")
