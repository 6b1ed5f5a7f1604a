"""GradientNorms: the norm of each rank's own gradients, before they are reduced."""

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

    Give one object for each optimizer or tape as `before_reduce=` of DistributedOptimizer or
    DistributedGradientTape. A rank whose norm differs much from the others has different data, or a
    fault. The norm is the square root of the sum of squares of all elements, in float32, without
    the loss scale. Each row of tf.IndexedSlices counts, also if its index occurs twice.

    Attributes:
        norm: a tf.Variable with the norm of the last step that counted; NaN before the first.
    """

    def __init__(self, every: int = 100) -> None:
        """Creates the variables; call it outside of tf.functions.

        Args:
            every: steps between two norms, beginning with the first step. Other steps cost nothing.

        Raises:
            ValueError: `every` is less than 1.
            TypeError: `every` is not an integer.
        """
        if operator.index(every) < 1:
            raise ValueError(f"GradientNorms needs every >= 1, not {every}")
        self.every = every
        self.norm = tf.Variable(float("nan"), trainable=False, dtype=tf.float32)
        self._steps = tf.Variable(0, trainable=False, dtype=tf.int64)

    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any]) -> Sequence[Any]:
        """Returns the gradients unchanged.

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
