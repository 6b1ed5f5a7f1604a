"""Weights of ranks: gradients become sum(d * g) / sum(d) instead of the mean of g.

A loss is a mean over something, rows or valid tokens, and ranks may have different numbers d of
them. Each rank sends d/c * g, and d/c as one more gradient of the same exchange, so no rank waits
for d before it computes. Then all divide by the mean of d/c. Where a factor is 1, nothing is
multiplied. Ranks that have joined count in neither mean.

The scale c keeps gradients of 16 bits in their range, and makes d/c 1 where all d are equal. It is
the mean of d in an earlier step, and stays until that mean is CHANGED times as large or as small.
Ranks must have the same c, and each computes it from the same results. In a new generation and
after a join all begin anew. Still c may differ, if a step failed on some ranks only. So c and 1/c
travel, too: the product of their means is 1 only if all are equal. If not, all take a new c, and
only that one step is weighted by d/c of different c. (0 for both says that there is no c yet.)

With backward_passes_per_step each pass adds d/c * g, and the update divides by the mean of d/c over
passes and ranks. Keras' own accumulation takes the mean of passes whatever they count; there ranks
count alike.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfring.ops import kept_number, library, xla
from tfring.runtime import topology

FIRST = 1024.0  # c of a first step
CHANGED = 4.0
# float16 holds gradients times this. A rank that has more of 16-bit gradients counts as this much.
NARROW_LIMIT = 64.0

# What each rank sends: d/c, d, c and 1/c. It stands among the variables.
WIRE = tf.TensorSpec([4], tf.float32, "weight_of_rank")

_lock = threading.Lock()
# c, by process set and name of the reduction.
_scales: dict[tuple[int, str], kept_number.KeptNumber] = {}
# c of the job that a checkpoint goes on with, for reductions that this process has not traced yet.
_earlier: dict[tuple[int, str], float] = {}


def _forget(process_set_id: int) -> None:
    """Lets scales begin anew; 0 stands for all process sets."""
    with _lock:
        for (members, _), scale in _scales.items():
            if process_set_id in (0, members):
                scale.forget()
        for key in [key for key in _earlier if process_set_id in (0, key[0])]:
            del _earlier[key]


topology.on_begin_together(_forget)


def scales() -> list[tuple[int, str, float]]:
    """Returns c of all reductions, with process set and name, for a checkpoint.

    A step with another c rounds otherwise, so training that goes on needs it to be exact.
    """
    with _lock:
        now = [(*key, scale.now()) for key, scale in _scales.items()]
    return [each for each in now if each[2] > 0.0]


def begin_with_scales(saved: Sequence[Sequence[Any]]) -> None:
    """Goes on with what `scales` returned, the same on all ranks."""
    with _lock:
        for members, name, value in saved:
            _earlier[members, name] = value
            if (members, name) in _scales:
                _scales[members, name].begin_with(value)


@dataclasses.dataclass
class Weight:
    """How much this rank's gradients count in one reduction.

    Attributes:
        share: d/c.
        known: c of earlier steps, or 0: then FIRST was used.
        scale: where c is kept; None if it is not.
        applied: the gradients have been multiplied by their shares.
        mean: of all ranks' shares, after the reduction.
    """

    share: Any
    known: Any
    scale: kept_number.KeptNumber | None
    applied: bool = False
    mean: Any = None

    def wire(self) -> Any:
        """Returns what travels with the gradients."""
        known = self.known
        count = self.share * _used(known)
        return tf.stack([self.share, count, known, tf.math.divide_no_nan(1.0, known)])

    def applied_to(self, gradients: Sequence[Any]) -> list[Any]:
        """Returns what this rank sends of its gradients."""
        return list(gradients) if self.applied else scaled(gradients, self.share)

    def divide(self, gradients: Sequence[Any], wire: Any) -> list[Any]:
        """Returns the weighted average; if no rank counts anything, zeros.

        Args:
            gradients: the reduced gradients.
            wire: the mean over the ranks of what `wire` returned.
        """
        self.mean, count, known, inverse = tf.unstack(wire, num=4)
        if self.scale is not None:
            apart = tf.abs(known * inverse - 1.0) > 1e-4
            moved = (count > CHANGED * self.known) | (CHANGED * count < self.known)
            new = tf.where((apart | moved) & (count > 0.0), count, self.known)
            self.scale.set(new)
        return scaled(gradients, tf.math.divide_no_nan(1.0, self.mean))

    def scaled_here(self, gradients: Sequence[Any]) -> list[Any]:
        """Returns gradients that stay this rank's own, times d over the mean of d."""
        factor = 1.0 if self.applied else self.share
        return scaled(gradients, tf.math.divide_no_nan(factor, self.mean))


def of_step(count: Any, name: str, *, process_set_id: int, narrow: bool) -> Weight:
    """Returns the weight of gradients that were divided by `count`.

    Args:
        count: a number, tensor or variable without dimensions.
        name: of the reduction, the same in each step.
        process_set_id: of the ranks that reduce.
        narrow: some gradients have the range of float16.
    """
    count = tf.cast(tf.reshape(tf.convert_to_tensor(count), []), tf.float32)
    plain = tf.compat.v1.executing_eagerly_outside_functions() and not tf.distribute.has_strategy()
    scale = _scale((process_set_id, name)) if plain else None
    known = tf.constant(0.0) if scale is None else scale.get()
    share = count / _used(known)
    return Weight(tf.minimum(share, NARROW_LIMIT) if narrow else share, known, scale)


def _used(known: Any) -> Any:
    return tf.where(known > 0.0, known, FIRST)


def _scale(key: tuple[int, str]) -> kept_number.KeptNumber:
    with _lock:
        if key not in _scales:
            name = f"{key[0]} {key[1]}"
            _scales[key] = kept_number.KeptNumber(name, 0.0, of_gradients=True)
            if key in _earlier:
                _scales[key].begin_with(_earlier[key])
        return _scales[key]


def scaled(gradients: Sequence[Any], factor: Any) -> list[Any]:
    """Returns gradients times a scalar; where that is 0, zeros even for NaN.

    Args:
        gradients: tf.Tensor, tf.IndexedSlices or None.
        factor: a float32 scalar; if it is 1, but for rounding, the gradients are returned as they
            are.
    """
    live = [i for i, gradient in enumerate(gradients) if gradient is not None]
    if not live:
        return list(gradients)
    parts = [_values(gradients[i]) for i in live]
    # XLA fuses the product with what made the gradient. A GPU would wait for the host to decide.
    if xla.compiling() or library.on_gpus():
        products = [_times(part, factor) for part in parts]
    else:
        products = [library.load().tfring_scaled(tensor=part, factor=factor) for part in parts]
    results: list[Any] = [None] * len(gradients)
    for i, product in zip(live, products, strict=True):
        given = gradients[i]
        if isinstance(given, tf.IndexedSlices):
            product = tf.IndexedSlices(product, given.indices, given.dense_shape)
        results[i] = product
    return results


def _values(gradient: Any) -> Any:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _times(tensor: Any, factor: Any) -> Any:
    narrow = tensor.dtype in (tf.float16, tf.bfloat16)
    wide = tf.float32 if narrow else tf.float64 if tensor.dtype.is_integer else tensor.dtype
    product = tf.math.multiply_no_nan(tf.cast(tensor, wide), tf.cast(factor, wide))
    return tf.cast(product, tensor.dtype)


class PassWeights:
    """What the passes of one update count, for an optimizer that accumulates gradients.

    Used by the thread that traces or runs the training step.
    """

    def __init__(self) -> None:
        self._state: Any = None
        self._last: Weight | None = None

    @property
    def variables(self) -> list[Any]:
        """c, the sum of shares and the number of passes, in one variable, once there is."""
        return [] if self._state is None else [self._state]

    def add(self, gradients: Sequence[Any], weight: Weight) -> list[Any]:
        """Returns what is to be accumulated of one pass with this weight."""
        if self._state is None:
            self._state = kept_number.new_variable([0.0, 0.0, 0.0])
        known, total, passes = tf.unstack(self._state.read_value())
        # c may begin anew between two passes of an update.
        known = tf.where(passes > 0.0, known, weight.known)
        share = weight.share * (_used(weight.known) / _used(known))
        weight = dataclasses.replace(weight, known=known, share=share)
        products = weight.applied_to(gradients)
        # Where the data have ended, there are no gradients, and this is no pass.
        there = [_values(product) for product in products if product is not None]
        with tf.control_dependencies(there[:1]):
            self._state.assign(tf.stack([known, total + share, passes + 1.0]))
        self._last = weight
        return products

    def take(self) -> Weight:
        """Returns the weight of the mean over the passes, and begins with the next update."""
        known, total, passes = tf.unstack(self._state.read_value())
        self._state.assign(tf.zeros([3]))
        assert self._last is not None
        return dataclasses.replace(self._last, known=known, share=total / passes, applied=True)
