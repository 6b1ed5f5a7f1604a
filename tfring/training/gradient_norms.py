"""GradientNorms: how large each rank's own gradients are, before they are reduced."""

from __future__ import annotations

import logging
import operator
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfring.ops import xla
from tfring.runtime import _native

_log = logging.getLogger("tfring")


class GradientNorms:
    """Writes the norm of this rank's own gradients into its record, every `every` steps.

    For `before_reduce=` of DistributedOptimizer or DistributedGradientTape, one object for each. A
    rank whose norm leaves those of the others has other data, or goes wrong. The norm is the square
    root of the sum of the squares of all elements, in float32; of tf.IndexedSlices the rows count
    as they are, also those that occur twice. With a loss scale it is that without the scale.

    Attributes:
        norm: a tf.Variable with the norm of the last step that counted; NaN before the first.
    """

    def __init__(self, every: int = 100) -> None:
        """Prepares the variables; to be made outside of tf.functions.

        Args:
            every: steps from one norm to the next, the first step counts. Others cost nothing.

        Raises:
            ValueError: `every` is less than 1.
            TypeError: it is no whole number.
        """
        if operator.index(every) < 1:
            raise ValueError(f"GradientNorms needs every >= 1, not {every}")
        self.every = every
        self.norm = tf.Variable(float("nan"), trainable=False, dtype=tf.float32)
        self._steps = tf.Variable(0, trainable=False, dtype=tf.int64)

    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any]) -> Sequence[Any]:
        """Returns the gradients as they are.

        Args:
            gradients: tf.Tensor, tf.IndexedSlices or None.
            variables: not used.
        """
        del variables
        values = [
            g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients if g is not None
        ]
        if not values:
            return gradients
        step = self._steps.assign_add(1, read_value=True)
        compiled = xla.compiling()  # XLA calls no Python

        def measure() -> Any:
            squares = [tf.reduce_sum(tf.square(tf.cast(v, tf.float32))) for v in values]
            norm = self.norm.assign(tf.sqrt(tf.add_n(squares)), read_value=True)
            if tf.executing_eagerly():
                _note(step.numpy(), norm.numpy())
            elif not compiled:
                tf.numpy_function(_note, [step, norm], [], stateful=True)
            return tf.constant(True)

        tf.cond(tf.equal((step - 1) % self.every, 0), measure, lambda: tf.constant(False))
        return gradients


def _note(step: Any, norm: Any) -> None:
    text = f"the norm of this rank's gradients is {float(norm):.6g} in step {int(step)}"
    _native.core.mark(text)
    _log.info(text)
