"""Keras 3 on TensorFlow with tfring: started by `tfring run`."""

from __future__ import annotations

from typing import Any

from benchmarks.frameworks import models, rank


class Tfring:
    init_first = False
    packages = ("tensorflow", "keras")

    def __init__(self) -> None:
        import keras
        import tensorflow as tf

        self._keras, self._started = keras, False
        # With one inter-op thread TensorFlow computes all weight gradients at the end.
        tf.config.threading.set_inter_op_parallelism_threads(2)

    def init(self, rank: int, size: int) -> None:
        import tfring.keras as hvd

        hvd.init()
        self._started = True

    def model(self, kind: str, together: bool) -> Any:
        if not together:
            return models.compiled(self._keras, kind)
        import tfring.keras as hvd

        model = models.compiled(self._keras, kind, hvd.DistributedOptimizer)
        hvd.broadcast_variables(model.variables, root_rank=0)
        return model

    def fit(self, model: Any, kind: str, epochs: int, clock: rank.Clock, together: bool) -> None:
        callbacks = [rank.callback(self._keras, clock)]
        if together:
            import tfring.keras as hvd

            callbacks = hvd.fit_callbacks(*callbacks)
        rank.fit_rows(model, kind, epochs, callbacks)

    def moved_bytes(self) -> int:
        if not self._started:
            return 0
        from tfring.runtime import _native

        return int(_native.core.counters()["bytes_sent"])


if __name__ == "__main__":
    rank.main(Tfring)
