"""DistributedOptimizer for the optimizers of Keras 2, new and legacy ones."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfring.keras.keras2.hook import ATTRIBUTE, Keras2Hook
from tfring.training.options import ReduceOptions
from tfring.training.ordinals import Ordinals
from tfring.training.reducer import GradientReducer

_optimizers = Ordinals()


def wrap(optimizer: Any, options: ReduceOptions, resumed: bool) -> Any:
    """Makes an optimizer of Keras 2 reduce gradients over the ranks; returns it.

    Args:
        optimizer: the optimizer; of a LossScaleOptimizer the inner one is changed.
        options: how to reduce.
        resumed: it has taken steps, and none that was traced will run again.

    Raises:
        ValueError: it is wrapped or has taken steps already, or backward_passes_per_step is no
            positive number.
    """
    inner = getattr(optimizer, "inner_optimizer", None) or optimizer
    kind = type(inner).__name__
    passes = options.backward_passes_per_step
    if passes < 1:
        raise ValueError(f"backward_passes_per_step must be at least 1, not {passes}")
    hook = getattr(inner, ATTRIBUTE, None)
    if isinstance(hook, Keras2Hook) and hook.optimizer is inner:
        raise ValueError(f"this {kind} is wrapped by DistributedOptimizer already; wrap it once")
    if not resumed and (steps := _steps_taken(inner)) > 0:
        raise ValueError(
            f"this {kind} has taken {steps} steps already, and a step that was traced before would "
            "go on without reducing gradients: wrap it before its first step, or pass resumed=True "
            "if it was loaded (load_model does), or if you compile the model again and make your "
            "tf.functions anew"
        )

    def make_name(hook: Keras2Hook) -> str:
        if options.name is not None:
            return f"tfring.keras2_optimizer.{options.name}"
        # By process set: its members may use optimizers that the other ranks do not have.
        group = options.members
        return f"tfring.keras2_optimizer.{_optimizers.number(hook.key, group)}"

    hook = Keras2Hook(inner, GradientReducer(options), make_name)
    hook.attach()
    if optimizer is not inner:
        object.__setattr__(optimizer, "register_local_var", hook.register_local_var)
    return optimizer


def _steps_taken(optimizer: Any) -> int:
    iterations = getattr(optimizer, "_iterations", None)  # a legacy optimizer makes it when used
    return int(iterations) if iterations is not None and tf.executing_eagerly() else 0
