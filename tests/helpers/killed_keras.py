"""A training with Keras whose processes may be killed: run as ``killed_keras.py FOLDER EPOCHS``.

The weights equal those of a run without kills, except for rounding, which float64 keeps small.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np

import tfring.keras as hvd
from benchmarks.elastic.worker import Log
from tfring.elastic import process as processes

SAMPLES, BATCH = 330, 12


class Watch(keras.callbacks.Callback):
    """Logs each step."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        time.sleep(0.005)
        present: Any = processes.present()
        generation = 1 if present is None else present.generation
        step = int(self.model.optimizer.iterations)
        self._log("commit", step=step, g=generation)


def model() -> Any:
    """Makes the model."""
    keras.utils.set_random_seed(5)
    layers = [keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(2)]
    made = keras.Sequential([keras.layers.Input((6,)), *layers])
    made.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.001)), "mse", jit_compile=False)
    return made


def main() -> None:
    folder, epochs = Path(sys.argv[1]), int(sys.argv[2])
    keras.config.set_floatx("float64")
    rng = np.random.default_rng(3)
    x = rng.normal(size=(SAMPLES, 6))
    y = np.tanh(x @ rng.normal(size=(6, 2)))
    worker = os.environ.get("TFRING_X_ELASTIC_WORKER")
    life = 10 * int(os.environ.get("ATTEMPT", 0)) + int(os.environ.get("TFRING_X_RESTART_COUNT", 0))
    hvd.init()
    log = Log(folder, int(worker) if worker else 100 * life + hvd.rank())
    log("up", pid=os.getpid())
    trained = model()
    hvd.elastic.fit(
        trained,
        (x, y),
        epochs=epochs,
        policy=BATCH,
        callbacks=[Watch(log)],
        checkpoint=f"{folder}/checkpoints",
        verbose=0,
    )
    weights = np.concatenate([weight.numpy().ravel() for weight in trained.trainable_weights])
    log("end", step=int(trained.optimizer.iterations), weights=weights.tolist())


if __name__ == "__main__":
    main()
