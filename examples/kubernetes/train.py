"""Trains a classifier in the pods of a job, and goes on from the newest checkpoint in a folder.

tfring run -np 2 python examples/kubernetes/train.py /tmp/checkpoints
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

import tfring.keras as hvd


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoints", nargs="?", default="/checkpoints")
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args(argv)
    hvd.init()
    if gpus := tf.config.list_physical_devices("GPU"):  # one for each rank of this pod
        tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], "GPU")

    draw = np.random.default_rng(1)  # all ranks have the same data; fit gives each its part
    x = draw.normal(size=(4096, 32)).astype(np.float32)
    y = (x[:, :4].sum(axis=1) > 0).astype(np.int32)
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.layers.Input((32,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(2),
        ]
    )
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    # At SIGTERM it publishes a checkpoint and ends with TFRING_STOPPED_EXIT_CODE.
    history = hvd.elastic.fit(
        model, (x, y), epochs=args.epochs, policy=256, checkpoint=args.checkpoints, verbose=0
    )
    if hvd.rank() == 0:
        print(f"accuracy {history.history['accuracy'][-1]:.3f}", flush=True)


if __name__ == "__main__":
    main()
