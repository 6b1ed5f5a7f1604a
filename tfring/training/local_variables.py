"""Variables of one rank: their gradients are not reduced.

The gradient of a shared variable is averaged, so it is 1/N of the gradient of the sum of the ranks'
losses. Local gradients are divided by N as well, unless scale_local_gradients is False, so one
learning rate suits both. N is the size of the process set when the step runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfring.collectives import sparse
from tfring.ops import topology_ops
from tfring.runtime import process_sets


def variable_key(variable: Any) -> Any:
    """Returns the key of a variable within this process; never sent to other ranks."""
    value = getattr(variable, "value", None)
    inner = variable if callable(value) or value is None else value
    return getattr(inner, "_unique_id", None) or id(inner)


class LocalVariables:
    """The variables whose gradients one tape or optimizer does not reduce.

    Layers may be given before they are built: their weights are looked up when needed. Used by the
    thread that traces or runs the training step.
    """

    def __init__(self, layers: Any = None, *, scale: bool = True, process_set: Any = None) -> None:
        """Names layers whose trainable weights are local.

        Args:
            layers: a layer or module, or several of them, or None.
            scale: divide local gradients by the size of the process set.
            process_set: the process set; None means all ranks.

        Raises:
            TypeError: something in `layers` is neither a Keras layer nor a tf.Module.
        """
        several = isinstance(layers, Iterable) and not _has_weights(layers)
        self._layers = list(layers) if several else [] if layers is None else [layers]
        for layer in self._layers:
            if not _has_weights(layer):
                raise TypeError(
                    f"local_layers takes Keras layers or tf.Modules, not {type(layer).__name__}"
                )
        self.scale = scale
        self._process_set = process_set or process_sets.global_process_set
        # Keeps the objects alive: another object could get the key of a freed one.
        self._registered: dict[Any, Any] = {}

    def register(self, variable: Any) -> None:
        """Adds a variable, or a tensor that a tape differentiates."""
        self._registered[variable_key(variable)] = variable

    def __bool__(self) -> bool:
        return bool(self._layers or self._registered)

    def positions(self, variables: Sequence[Any]) -> set[int]:
        """Returns which of `variables` are local."""
        if not self:
            return set()
        keys = set(self._registered)
        for layer in self._layers:
            keys.update(variable_key(v) for v in _weights_of(layer))
        return {i for i, v in enumerate(variables) if variable_key(v) in keys}

    def scaled(self, gradients: Sequence[Any]) -> list[Any]:
        """Returns local gradients for the optimizer: divided, unless `scale` is False."""
        included = self._process_set.process_set_id == 0 or self._process_set.included()
        if not self.scale or not gradients or not included:
            return list(gradients)
        size = topology_ops.size_op(process_sets.checked_id(self._process_set))
        share = 1.0 / tf.cast(size, tf.float64)
        return [sparse.times(gradient, share) for gradient in gradients]


def _has_weights(layer: Any) -> bool:
    return hasattr(layer, "trainable_weights") or hasattr(layer, "trainable_variables")


def _weights_of(layer: Any) -> list[Any]:
    weights = getattr(layer, "trainable_weights", None)
    return list(layer.trainable_variables if weights is None else weights)
