"""Trains examples/keras_fit.py's classifier with Keras 2 as tf.keras.

TF_USE_LEGACY_KERAS=1 tfring run -np 2 python tools/wheels/keras2_fit.py
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import example_data
import tensorflow as tf

import tfring.keras as hvd

EPOCHS = 20


def main() -> int:
    hvd.init()
    keras = tf.keras
    if not keras.Model.__module__.startswith("tf_keras."):
        raise RuntimeError(f"tf.keras is {keras.Model.__module__}: set TF_USE_LEGACY_KERAS=1")
    tf.random.set_seed(hvd.rank())  # Keras 2's own function does not work with Python 3.12
    data = example_data.load("digits", None)
    x, y = data.shard(hvd.rank(), hvd.size())
    layers = [keras.layers.Dense(units, activation="relu") for units in (128, 64)]
    model = keras.Sequential(
        [keras.Input((x.shape[1],)), *layers, keras.layers.Dense(data.classes)]
    )
    model.compile(
        optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3 * hvd.size())),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    started = time.perf_counter()
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
    ]
    model.fit(x, y, batch_size=32, epochs=EPOCHS, callbacks=callbacks, verbose=0)
    rate = EPOCHS * len(x) * hvd.size() / (time.perf_counter() - started)
    _, accuracy = model.evaluate(data.x_test, data.y_test, verbose=0)
    return example_data.report(model, accuracy, rate)


if __name__ == "__main__":
    sys.exit(main())
