"""Weights of ranks: gradients become sum(d * g) / sum(d) instead of the mean of g.

A loss is a mean over rows or valid tokens, and ranks may have different numbers d of them. Each
rank sends d/c * g, and d/c as one more gradient of the same reduction, so no rank waits for d
before it computes. Then all divide by the mean of d/c. A factor of 1 is not multiplied. Ranks that
have joined count in neither mean.

The scale c keeps 16-bit gradients in their range, and makes d/c 1 if all d are equal. It is the
mean of d in an earlier step, and stays until that mean is CHANGED times as large or as small. Ranks
must have the same c, and each computes it from the same results. In a new generation and after a
join all begin anew. Still c may differ, if a step failed on some ranks only. So each rank also
sends c and 1/c: the product of their means is 1 only if all are equal. If not, all take a new c,
and only that one step is weighted by d/c of different c. (0 for both means that there is no c yet.)

With backward_passes_per_step each pass adds d/c * g, and the update divides by the mean of d/c over
passes and ranks. Keras' own accumulation takes the plain mean of passes; there ranks weigh the
same.
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
# float16 can hold gradients times this. It is the largest weight of a rank with 16-bit gradients.
NARROW_LIMIT = 64.0

# Each rank sends d/c, d, c and 1/c, among the variables.
WIRE = tf.TensorSpec([4], tf.float32, "weight_of_rank")

_lock = threading.Lock()
# c, by process set and name of the reduction.
_scales: dict[tuple[int, str], kept_number.KeptNumber] = {}
# c from a checkpoint, for reductions that this process has not traced yet.
_earlier: dict[tuple[int, str], float] = {}


def _forget(process_set_id: int) -> None:
    """Restarts the scales of a process set; 0 means all process sets."""
    with _lock:
        for (members, _), scale in _scales.items():
            if process_set_id in (0, members):
                scale.forget()
        for key in [key for key in _earlier if process_set_id in (0, key[0])]:
            del _earlier[key]


topology.on_begin_together(_forget)


def scales() -> list[tuple[int, str, float]]:
    """Returns c of all reductions, with process set and name, for a checkpoint.

    A step with a different c rounds differently, so a resumed job needs it to be exact.
    """
    with _lock:
        now = [(*key, scale.now()) for key, scale in _scales.items()]
    return [each for each in now if each[2] > 0.0]


def begin_with_scales(saved: Sequence[Sequence[Any]]) -> None:
    """Continues with the result of `scales`, equal on all ranks."""
    with _lock:
        for members, name, value in saved:
            _earlier[members, name] = value
            if (members, name) in _scales:
                _scales[members, name].begin_with(value)


@dataclasses.dataclass
class Weight:
    """This rank's weight in one reduction.

    Attributes:
        share: d/c.
        known: c of earlier steps, or 0: then FIRST was used.
        scale: where c is kept; None if it is not kept.
        applied: the gradients have been multiplied by their shares.
        mean: of all ranks' shares, after the reduction.
    """

    share: Any
    known: Any
    scale: kept_number.KeptNumber | None
    applied: bool = False
    mean: Any = None

    def wire(self) -> Any:
        """Returns the values to reduce with the gradients."""
        known = self.known
        count = self.share * _used(known)
        return tf.stack([self.share, count, known, tf.math.divide_no_nan(1.0, known)])

    def applied_to(self, gradients: Sequence[Any]) -> list[Any]:
        """Returns this rank's gradients times its share."""
        return list(gradients) if self.applied else scaled(gradients, self.share)

    def divide(self, gradients: Sequence[Any], wire: Any) -> list[Any]:
        """Returns the weighted average; if all weights are 0, zeros.

        Args:
            gradients: the reduced gradients.
            wire: the mean over the ranks of the results of `wire`.
        """
        self.mean, count, known, inverse = tf.unstack(wire, num=4)
        if self.scale is not None:
            apart = tf.abs(known * inverse - 1.0) > 1e-4
            moved = (count > CHANGED * self.known) | (CHANGED * count < self.known)
            new = tf.where((apart | moved) & (count > 0.0), count, self.known)
            self.scale.set(new)
        return scaled(gradients, tf.math.divide_no_nan(1.0, self.mean))

    def scaled_here(self, gradients: Sequence[Any]) -> list[Any]:
        """Returns local gradients times d over the mean of d."""
        factor = 1.0 if self.applied else self.share
        return scaled(gradients, tf.math.divide_no_nan(factor, self.mean))


def of_step(count: Any, name: str, *, process_set_id: int, narrow: bool) -> Weight:
    """Returns the weight of gradients that were divided by `count`.

    Args:
        count: a scalar number, tensor or variable.
        name: of the reduction, equal in each step.
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
    """Returns gradients times a scalar; if that is 0, zeros even for NaN.

    Args:
        gradients: tf.Tensor, tf.IndexedSlices or None.
        factor: a float32 scalar; if it is 1, but for rounding, the gradients are returned
            unchanged.
    """
    live = [i for i, gradient in enumerate(gradients) if gradient is not None]
    if not live:
        return list(gradients)
    parts = [_values(gradients[i]) for i in live]
    # XLA fuses the product with the op before it. On a GPU a conditional would wait for the host.
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
    """The weights of the passes of one update, for an optimizer that accumulates gradients.

    Used by the thread that traces or runs the training step.
    """

    def __init__(self) -> None:
        self._state: Any = None
        self._last: Weight | None = None

    @property
    def variables(self) -> list[Any]:
        """c, the sum of shares and the number of passes, in one variable, once it exists."""
        return [] if self._state is None else [self._state]

    def add(self, gradients: Sequence[Any], weight: Weight) -> list[Any]:
        """Returns the part of one pass, with this weight, to accumulate."""
        if self._state is None:
            self._state = kept_number.new_variable([0.0, 0.0, 0.0])
        known, total, passes = tf.unstack(self._state.read_value())
        # c may begin anew between two passes of an update.
        known = tf.where(passes > 0.0, known, weight.known)
        share = weight.share * (_used(weight.known) / _used(known))
        weight = dataclasses.replace(weight, known=known, share=share)
        products = weight.applied_to(gradients)
        # After the end of the data there are no gradients, and this does not count as a pass.
        there = [_values(product) for product in products if product is not None]
        with tf.control_dependencies(there[:1]):
            self._state.assign(tf.stack([known, total + share, passes + 1.0]))
        self._last = weight
        return products

    def take(self) -> Weight:
        """Returns the weight of the mean over the passes, and starts the next update."""
        known, total, passes = tf.unstack(self._state.read_value())
        self._state.assign(tf.zeros([3]))
        assert self._last is not None
        return dataclasses.replace(self._last, known=known, share=total / passes, applied=True)
