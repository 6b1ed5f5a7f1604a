"""Keras 2 on TensorFlow with MultiWorkerMirroredStrategy: each rank is started by hand."""

from __future__ import annotations

import contextlib
from typing import Any

from benchmarks.frameworks import models, rank


class MultiWorker:
    packages = ("tensorflow", "tf_keras")
    init_first = True  # TensorFlow's collectives have to be set up before it computes

    def __init__(self) -> None:
        import tensorflow as tf
        import tf_keras

        self._tf, self._keras = tf, tf_keras
        tf.config.threading.set_inter_op_parallelism_threads(2)
        self._strategy: Any = None

    def init(self, rank: int, size: int) -> None:
        self._strategy = self._tf.distribute.MultiWorkerMirroredStrategy()

    def model(self, kind: str, together: bool) -> Any:
        with self._strategy.scope() if together else contextlib.nullcontext():
            return models.compiled(self._keras, kind)

    def fit(self, model: Any, kind: str, epochs: int, clock: rank.Clock, together: bool) -> None:
        callbacks = [rank.callback(self._keras, clock)]
        if not together:
            return rank.fit_rows(model, kind, epochs, callbacks)
        # The strategy gives each rank its rows of each global batch.
        data = self._tf.data.Dataset.from_tensor_slices(models.epoch(kind))
        batches = data.batch(models.GLOBAL_BATCH)
        model.fit(batches, epochs=epochs, verbose=0, callbacks=callbacks)

    def moved_bytes(self) -> int:
        return 0


if __name__ == "__main__":
    rank.main(MultiWorker)
