"""What callbacks decide at the end of an epoch: whether training stops, and the learning rates."""

from __future__ import annotations

import dataclasses
from typing import Any

from tfring.keras import facts
from tfring.keras.model_optimizers import optimizers_of, parts_of


@dataclasses.dataclass(frozen=True)
class Decisions:
    """What the callbacks of a rank have decided."""

    stop: bool  # whether training stops
    rates: tuple[tuple[float, ...], ...]  # the learning rates of each optimizer of the model

    @classmethod
    def of(cls, model: Any) -> Decisions:
        """Returns the present decisions for a model."""
        rates = (map(facts.rate_of, parts) for parts in _parts(model))
        return cls(bool(model.stop_training), tuple(map(tuple, rates)))

    def apply(self, model: Any) -> None:
        """Applies them to a model."""
        model.stop_training = self.stop
        self.apply_rates(model)

    def apply_rates(self, model: Any) -> None:
        """Gives the optimizers of a model these learning rates."""
        for parts, wanted in zip(_parts(model), self.rates, strict=True):
            for part, rate in zip(parts, wanted, strict=True):
                if facts.rate_of(part) != rate:
                    part.learning_rate = rate


def _parts(model: Any) -> list[list[Any]]:
    return [list(parts_of(optimizer)) for optimizer in optimizers_of(model).values()]
