"""Trains a classifier with Keras on ranks that may be lost or join during training.

tfring run -np 4 --min-np 2 --max-np 8 --host-discovery-script ./hosts.sh python \
    examples/elastic_keras.py
tfring run -np 2 python examples/elastic_keras.py

The second command starts a job of a fixed size. With --resume, a job that was stopped, also by
SIGTERM, goes on where it was when it is started again.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import example_data
import keras
import keras_fit
import tensorflow as tf

import tfring.keras as hvd


def main(argv: Sequence[str] | None = None) -> int:
    parser = example_data.parser(__doc__.splitlines()[0])
    parser.add_argument("--resume", type=Path, help="folder of checkpoints to go on from")
    args = parser.parse_args(argv)
    hvd.init()
    if gpus := tf.config.list_physical_devices("GPU"):  # one for each rank of this host
        tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], "GPU")

    data = example_data.load(args.data, args.data_dir)
    model = keras_fit.build_model(data.x_train.shape[1], data.classes)
    # With `per_rank` each rank has a batch of this size, and the learning rate is multiplied by
    # the current number of ranks: this is the rate for one rank.
    model.compile(
        optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(args.learning_rate)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=["accuracy"],
    )
    begin = time.perf_counter()
    history = hvd.elastic.fit(
        model,
        (data.x_train, data.y_train),
        policy=hvd.data.Policy(args.batch_size, per_rank=True),
        epochs=args.epochs,
        checkpoint=None if args.resume is None else str(args.resume),
        verbose=2,
    )
    rate = len(history.epoch) * len(data.x_train) / (time.perf_counter() - begin)
    if hvd.rank() == 0:
        model.save(args.checkpoint)
        print(f"saved {args.checkpoint}")
    _, accuracy = model.evaluate(data.x_test, data.y_test, verbose=0)
    return example_data.report(model, accuracy, rate)


if __name__ == "__main__":
    sys.exit(main())
