"""backward_passes_per_step, by Keras' own accumulation or, for a built optimizer, by ours.

Keras makes its accumulators when it builds an optimizer, as part of the state that is saved. An
optimizer that is built already keeps its state as it is: the hook accumulates gradients before it
hands them to the optimizer.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tfring.training.accumulation import LocalGradientAggregationHelper


@dataclasses.dataclass(frozen=True)
class Accumulation:
    """How the hook accumulates gradients, or scales those that Keras has accumulated.

    Attributes:
        factor: multiplies what Keras has accumulated, which is the mean over the passes.
        passes: how many passes the hook itself accumulates; 1 if it does not.
        average: use the mean over these passes instead of their sum.
        one_batch: the passes of an update count by their rows or tokens, as parts of one batch;
            else passes and ranks count alike: Keras' own accumulation takes the mean of passes.
    """

    factor: float = 1.0
    passes: int = 1
    average: bool = False
    one_batch: bool = False

    def helper(self, reduce: Any) -> LocalGradientAggregationHelper:
        """Returns what accumulates for a built optimizer and reduces by calling `reduce`."""
        return LocalGradientAggregationHelper(
            self.passes, reduce, average_aggregated_gradients=self.average
        )


def set_up(inner: Any, passes: int, average: bool) -> Accumulation:
    """Makes an optimizer accumulate over so many passes.

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
    if inner.built:
        return Accumulation(passes=passes, average=average, one_batch=True)
    inner.gradient_accumulation_steps = passes
    return Accumulation(factor=1.0 if average else float(passes), one_batch=True)
