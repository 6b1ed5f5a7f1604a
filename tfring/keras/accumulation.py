"""backward_passes_per_step: the hook accumulates gradients before the optimizer gets them.

Keras' own gradient_accumulation_steps is a part of the optimizer, and takes the mean of the passes.
A saved model would have it, and would mean something else than the sum of the passes.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tfring.training.accumulation import LocalGradientAggregationHelper


@dataclasses.dataclass(frozen=True)
class Accumulation:
    """How the hook accumulates gradients.

    Attributes:
        passes: backward_passes_per_step: the passes of an update count by their rows or tokens, as
            parts of one batch. 1: the hook does not accumulate.
        average: use the mean over these passes instead of their sum.
    """

    passes: int = 1
    average: bool = False

    def helper(self, reduce: Any) -> LocalGradientAggregationHelper:
        """Returns what accumulates, and reduces by calling `reduce`."""
        return LocalGradientAggregationHelper(
            self.passes, reduce, average_aggregated_gradients=self.average
        )


def of(inner: Any, passes: int, average: bool) -> Accumulation:
    """Returns how an optimizer accumulates over so many passes.

    Args:
        inner: the innermost optimizer.
        passes: backward_passes_per_step.
        average: average_aggregated_gradients.

    Raises:
        ValueError: passes is no positive number, or the optimizer accumulates already.
        NotImplementedError: a MultiOptimizer, whose parts each count their own steps.
    """
    if passes < 1:
        raise ValueError(f"backward_passes_per_step must be at least 1, not {passes}")
    if passes == 1:
        return Accumulation()
    if inner.gradient_accumulation_steps:
        raise ValueError(
            f"optimizer {inner.name!r} has gradient_accumulation_steps="
            f"{inner.gradient_accumulation_steps} already; do not give "
            f"backward_passes_per_step={passes} as well"
        )
    if hasattr(inner, "optimizers"):
        raise NotImplementedError("backward_passes_per_step cannot be used with a MultiOptimizer")
    return Accumulation(passes, average)
