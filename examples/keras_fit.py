"""Trains a classifier with Keras' fit on several ranks.

mpirun -np 2 python examples/keras_fit.py
tfring run -np 2 python examples/keras_fit.py
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import example_data
import keras
import tensorflow as tf

import tfring.keras as hvd


class Throughput(keras.callbacks.Callback):
    """Measures samples per second over all ranks, without the first epoch: Keras traces in it."""

    def __init__(self, samples_per_epoch: int) -> None:
        super().__init__()
        self._samples = samples_per_epoch
        self._epochs = 0
        self._started = 0.0
        self.samples_per_second = 0.0

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        now = time.perf_counter()
        if self._epochs:
            self.samples_per_second = self._epochs * self._samples / (now - self._started)
        else:
            self._started = now
        self._epochs += 1


def build_model(features: int, classes: int) -> Any:
    return keras.Sequential(
        [
            keras.layers.Input((features,)),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(classes),
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    args = example_data.parser(__doc__.splitlines()[0]).parse_args(argv)
    hvd.init()
    if gpus := tf.config.list_physical_devices("GPU"):  # one for each rank of this host
        tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], "GPU")
    first = hvd.rank() == 0
    keras.utils.set_random_seed(hvd.rank())  # ranks start different; the broadcast makes them equal

    data = example_data.load(args.data, args.data_dir)
    x, y = data.shard(hvd.rank(), hvd.size())

    # More ranks make a larger batch: the learning rate grows with it, after a warm-up.
    rate = args.learning_rate * hvd.size()
    model = build_model(x.shape[1], data.classes)
    model.compile(
        optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(rate)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    throughput = Throughput(len(x) * hvd.size())
    model.fit(
        x,
        y,
        batch_size=args.batch_size,
        epochs=args.epochs,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            hvd.callbacks.LearningRateWarmupCallback(rate, warmup_epochs=3),
            throughput,
        ],
        verbose=2 if first else 0,
    )
    if first:
        model.save(args.checkpoint)
        print(f"saved {args.checkpoint}")
    _, accuracy = model.evaluate(data.x_test, data.y_test, verbose=0)
    return example_data.report(model, accuracy, throughput.samples_per_second)


if __name__ == "__main__":
    sys.exit(main())
