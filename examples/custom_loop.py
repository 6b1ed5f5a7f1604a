"""Trains a classifier with a custom training loop, in a tf.function, on several ranks.

mpirun -np 2 python examples/custom_loop.py
tfring run -np 2 python examples/custom_loop.py
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import example_data
import keras
import numpy as np
import tensorflow as tf
from keras_fit import build_model

import tfring as hvd


def make_train_step(model: Any, optimizer: Any, loss_of: Any) -> Any:
    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    return train_step


def main(argv: Sequence[str] | None = None) -> int:
    args = example_data.parser(__doc__.splitlines()[0]).parse_args(argv)
    hvd.init()
    if gpus := tf.config.list_physical_devices("GPU"):  # one for each rank of this host
        tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], "GPU")
    first = hvd.rank() == 0
    keras.utils.set_random_seed(hvd.rank())

    data = example_data.load(args.data, args.data_dir)
    x, y = data.shard(hvd.rank(), hvd.size())
    batches = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x))
    batches = batches.batch(args.batch_size, drop_remainder=True)

    model = build_model(x.shape[1], data.classes)
    optimizer = keras.optimizers.Adam(args.learning_rate * hvd.size())
    optimizer.build(model.trainable_variables)
    # Every rank starts from rank 0's weights and optimizer state.
    hvd.broadcast_variables(model.weights + optimizer.variables, root_rank=0)

    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    train_step = make_train_step(model, optimizer, loss_of)
    seconds, steps = 0.0, 0
    for epoch in range(args.epochs):
        started = time.perf_counter()
        losses = [float(train_step(*batch)) for batch in batches]
        if epoch:  # TensorFlow traces in the first
            seconds, steps = seconds + time.perf_counter() - started, steps + len(losses)
        mean = float(hvd.allreduce(np.mean(losses), name="loss"))
        if first:
            print(f"epoch {epoch + 1}/{args.epochs}: loss {mean:.4f}")

    if first:
        model.save(args.checkpoint)
        print(f"saved {args.checkpoint}")
    predicted = np.argmax(model(data.x_test, training=False), axis=1)
    accuracy = float(np.mean(predicted == data.y_test))
    samples = steps * args.batch_size * hvd.size()
    return example_data.report(model, accuracy, samples / seconds if seconds else 0.0)


if __name__ == "__main__":
    sys.exit(main())
