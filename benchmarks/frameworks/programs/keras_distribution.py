"""Keras' own DataParallel with `fit`, on torch or JAX: each rank is started by hand."""

from __future__ import annotations

from typing import Any

from benchmarks.frameworks import models, rank


class KerasDistribution:
    def __init__(self) -> None:
        import keras

        self._keras = keras
        # JAX must know all processes before it computes; on torch, fit alone would use them.
        self.init_first = keras.backend.backend() == "jax"
        self.packages = (keras.backend.backend(), "keras")

    def init(self, rank: int, size: int) -> None:
        self._keras.distribution.initialize()

    def model(self, kind: str, together: bool) -> Any:
        distribution = self._keras.distribution
        # Keras cannot share out arrays: each rank gives its own rows.
        parallel = distribution.DataParallel(auto_shard_dataset=False) if together else None
        distribution.set_distribution(parallel)
        return models.compiled(self._keras, kind)

    def fit(self, model: Any, kind: str, epochs: int, clock: rank.Clock, together: bool) -> None:
        rank.fit_rows(model, kind, epochs, [rank.callback(self._keras, clock)])

    def moved_bytes(self) -> int:
        return 0


if __name__ == "__main__":
    rank.main(KerasDistribution)
