"""Keras 3 on torch with DistributedDataParallel and a training loop: started by torchrun."""

from __future__ import annotations

from typing import Any

from benchmarks.frameworks import models, rank


class TorchLoop:
    init_first = False
    packages = ("torch", "keras")

    def __init__(self) -> None:
        import keras
        import torch

        self._keras, self._torch = keras, torch

    def init(self, rank: int, size: int) -> None:
        self._torch.distributed.init_process_group("gloo")

    def model(self, kind: str, together: bool) -> Any:
        model = models.build(self._keras, kind)
        if together:
            # An attribute of the Keras model would become one of its layers.
            self._ddp = self._torch.nn.parallel.DistributedDataParallel(model)
        return model

    def fit(self, model: Any, kind: str, epochs: int, clock: rank.Clock, together: bool) -> None:
        torch = self._torch
        x, y = (torch.from_numpy(rows) for rows in rank.own_rows(kind))
        y = y.long()
        called = self._ddp if together else model
        optimizer = torch.optim.SGD(model.parameters(), models.RATE, momentum=models.MOMENTUM)
        batches = list(zip(x.chunk(models.BATCHES), y.chunk(models.BATCHES), strict=True))
        model.train()
        for _ in range(epochs):
            clock.epoch()
            for inputs, labels in batches:
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(called(inputs), labels)
                loss.backward()
                optimizer.step()
                clock.step()

    def moved_bytes(self) -> int:
        return 0


if __name__ == "__main__":
    rank.main(TorchLoop)
