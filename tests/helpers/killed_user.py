"""A training as users write it, whose processes may be killed: ``killed_user.py FOLDER EPOCHS``.

It uses mixed precision, AdamW with moving averages, accumulation, dropout, augmentation, a schedule
and callbacks with state. Each rank logs the samples of its steps, and at the end a digest of all
state, which must be bit-identical whatever happens to the processes.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfring.keras as hvd
from benchmarks.elastic.worker import Log

# Neither the batch nor the steps of an epoch are round numbers or end with an update.
SAMPLES, FEATURES, BATCH, PASSES = 258, 6, 6, 4
RATE = 0.02

# The samples of the last step; during validation, those of a validation batch.
LAST = tf.Variable(tf.zeros([BATCH]), trainable=False, shape=[None])


class Watch(keras.callbacks.Callback):
    """Logs the samples of each step."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log, self.steps = log, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps += 1
        self._log("commit", step=self.steps, rank=hvd.rank(), samples=LAST.numpy().tolist())
        time.sleep(0.02)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]


class Cosine(keras.callbacks.Callback):
    """Multiplies the learning rate by a cosine; runs together with a ReduceLROnPlateau."""

    def __init__(self, epochs: int) -> None:
        super().__init__()
        self._epochs, self._last = epochs, 1.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        factor = 0.1 + 0.9 * (1 + np.cos(np.pi * epoch / self._epochs)) / 2
        optimizer = self.model.optimizer
        optimizer.learning_rate = float(optimizer.learning_rate) * factor / self._last
        self._last = float(factor)

    def state_dict(self) -> dict[str, Any]:
        return {"last": self._last}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._last = state["last"]


def noted(target: Any, output: Any) -> Any:
    """The squared error; notes the sample numbers, which are the second column of the target."""
    LAST.assign(target[:, 1])
    return tf.square(target[:, :1] - output)


def model() -> Any:
    """Makes the model, the same one after each restart."""
    hvd.set_random_seed(42)
    keras.mixed_precision.set_global_policy("mixed_float16")
    made = keras.Sequential(
        [
            keras.layers.Input((FEATURES,)),
            keras.layers.Dense(16, activation="tanh"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(1, dtype="float32"),
        ]
    )
    optimizer = keras.optimizers.AdamW(RATE, use_ema=True, gradient_accumulation_steps=PASSES)
    made.compile(hvd.DistributedOptimizer(optimizer), noted, jit_compile=False)
    return made


def augmented(inputs: Any, target: Any) -> Any:
    """Adds noise that depends only on the sample numbers."""
    seeds = tf.cast(target[:, 1], tf.int32)
    noise = tf.map_fn(
        lambda seed: tf.random.stateless_normal([FEATURES], tf.stack([7, seed])),
        seeds,
        fn_output_signature=tf.float32,
    )
    return inputs + 0.1 * noise, target


def digest(values: list[Any]) -> str:
    """Returns a hash of arrays."""
    found = hashlib.sha256()
    for value in values:
        found.update(np.ascontiguousarray(value).tobytes())
    return found.hexdigest()


def main() -> None:
    folder, epochs = Path(sys.argv[1]), int(sys.argv[2])
    life = 1000 * int(os.environ["ATTEMPT"]) + int(os.environ["TFRING_X_RESTART_COUNT"])
    hvd.init()
    log = Log(folder, 100 * life + hvd.rank())
    log("up", pid=os.getpid())
    rng = np.random.default_rng(3)
    x = rng.normal(size=(SAMPLES, FEATURES)).astype(np.float32)
    y = np.stack([np.sin(x.sum(axis=1)), np.arange(SAMPLES)], axis=1).astype(np.float32)
    trained = model()
    stop = keras.callbacks.EarlyStopping("val_loss", patience=5, restore_best_weights=True)
    plateau = keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=2, cooldown=1)
    best = keras.callbacks.ModelCheckpoint(
        folder / "best.weights.h5", save_best_only=True, save_weights_only=True
    )
    cosine, watch = Cosine(epochs), Watch(log)
    history = trained.fit(
        hvd.shard((x[:-30], y[:-30]), BATCH).map(augmented),
        epochs=epochs,
        validation_data=(x[-30:], y[-30:]),
        validation_batch_size=30,
        verbose=0,
        callbacks=hvd.fit_callbacks(
            cosine, stop, plateau, best, watch, checkpoint=folder / "checkpoints", every_steps=5
        ),
    )
    log(
        "end",
        rank=hvd.rank(),
        step=watch.steps,
        weights=digest(trained.get_weights()),
        optimizer=digest([v.numpy() for v in trained.optimizer.variables]),
        callbacks=[
            [stop.best, stop.wait, stop.stopped_epoch, stop.best_epoch, digest(stop.best_weights)],
            [plateau.best, plateau.wait, plateau.cooldown_counter],
            [best.best if hvd.rank() == 0 else None, cosine.state_dict()],
        ],
        history=json.dumps([history.epoch, history.history]),
    )


if __name__ == "__main__":
    main()
