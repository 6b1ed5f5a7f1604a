"""The divisors of the losses in a training step: the weight of this rank in that step.

Keras' losses are means: over all elements, over those that a mask leaves, or, with the reduction
"mean_with_sample_weight", over the sum of the sample weights. One function of Keras reduces all of
them. It is replaced, so that its divisor is known while Keras' own `train_step` runs. `train_step`
is replaced in the class: it passes the batch to `weight_by` functions. The call of the losses given
to `compile` is replaced, too: they count before all others. The replacements change nothing for an
optimizer that is not wrapped.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import warnings
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras.src.losses import loss as _losses
from keras.src.trainers import compile_utils as _compile_utils

from tfring.keras.gradient_hook import find_hook
from tfring.ops import backward, reduce_ops
from tfring.runtime import topology
from tfring.runtime.keras_version import replaceable
from tfring.training import unreduced
from tfring.training.options import ReduceOptions

_WHAT = "tfring.keras.DistributedOptimizer"
_trainer = next(cls for cls in keras.Model.__mro__ if "train_step" in vars(cls))
_original_reduce = replaceable(_losses, "reduce_weighted_values", _WHAT)
_original_step = replaceable(_trainer, "train_step", _WHAT)
_CompileLoss = replaceable(_compile_utils, "CompileLoss", _WHAT)
_original_compiled = replaceable(_CompileLoss, "__call__", _WHAT)


class _Steps(threading.local):
    """The training step that this thread is in, or traces."""

    now: TrainStep | None = None


_steps = _Steps()


@dataclasses.dataclass
class _Noted:
    """The divisors of the losses of one step."""

    sums: int = 0  # losses that are sums
    # Of the others: kind, divisor.
    counts: list[tuple[tuple[Any, ...], Any]] = dataclasses.field(default_factory=list)


class TrainStep:
    """One step of Keras' own `train_step`, while it runs or is traced."""

    def __init__(self, hook: Any, data: Any) -> None:
        """Takes the hook of the model's optimizer, and the batch."""
        self.hook = hook
        self._batch = keras.utils.unpack_x_y_sample_weight(data)
        self._graph = _graph()
        self._others = _Noted()  # losses that layers or a compute_loss call
        self._compiled: _Noted | None = None  # those given to `compile`, if they ran
        self._noting = self._others
        self.has_loss = False  # set by the hook, before the backward pass

    def compiled(self, call: Callable[[], Any]) -> Any:
        """Calls the losses given to `compile`, and notes them apart from all others."""
        before = self._noting
        self._noting = self._compiled = self._compiled or _Noted()
        try:
            return call()
        finally:
            self._noting = before

    def add(self, values: Any, sample_weight: Any, mask: Any, reduction: Any) -> None:
        """Notes the divisor of one loss; the arguments are Keras'."""
        if _graph() is not self._graph:
            return  # within a tf.cond, tf.map_fn or tf.function, whose tensors stay inside
        counts = self._noting.counts
        if reduction in ("sum", "none", None):
            self._noting.sums += 1
        elif values.shape.rank == 0:  # a function that has reduced its loss itself
            counts.append((("rows",), self._rows()))
        elif reduction == "mean_with_sample_weight" and not (sample_weight is mask is None):
            kind = ("weights", id(sample_weight), id(mask))
            factors = [None if f is None else tf.cast(f, tf.float32) for f in (sample_weight, mask)]
            given = _losses.apply_mask(*factors, dtype=tf.float32, reduction=reduction)
            counts.append((kind, tf.reduce_sum(given)))
        elif mask is not None:
            valid = tf.reduce_sum(tf.cast(mask, tf.float32))
            each = _size(values) / tf.maximum(_size(mask), 1.0)
            counts.append((("mask", id(mask)), valid * each))
        else:
            counts.append((("rows",), _size(values)))

    def of_batch(self, function: Callable[[Any, Any, Any], Any]) -> Any:
        """Calls a function of (x, y, sample_weight) with the batch."""
        return function(*self._batch)

    def of_loss(self) -> Any:
        """Returns the divisor of the first loss that is a mean; None if all are sums.

        Only the losses given to `compile` count, if they ran: a layer's own come before them.
        """
        noted = self._compiled or self._others
        if noted.counts:
            return noted.counts[0][1]
        return None if noted.sums else self._rows()

    def warn(self, model: Any, options: ReduceOptions) -> None:
        """Warns of a model whose losses cannot be averaged over the ranks as they are."""
        by_loss = isinstance(options.weight_by, str)
        if topology.size() == 1 or topology.rank() != 0 or not by_loss:
            return
        if options.op == reduce_ops.Sum and model.losses:
            _say(
                f"op=Sum adds up the gradients of all {topology.size()} ranks, and with them those "
                f"of regularisers and add_loss, which then count {topology.size()} times.\n"
                "Divide their factors by hvd.size(), or use losses that are means and op=Average."
            )
        if options.op != reduce_ops.Average:
            return
        noted = (self._compiled or _Noted(), self._others)
        if any(each.sums for each in noted):
            _say(
                f"a loss of this model is a sum (its reduction is 'sum' or None), and op=Average "
                f"divides its gradients by the {topology.size()} ranks, so they are "
                f"1/{topology.size()} of those that one process would have.\n"
                "Use DistributedOptimizer(..., op=hvd.Sum), or the reduction 'sum_over_batch_size'."
            )
        if len({kind for each in noted for kind, _ in each.counts}) > 1:
            _say(
                "the losses of this model divide by different numbers (masks, sample weights, "
                "rows), and all gradients of a rank are weighted by that of the first loss that "
                "compile was given.\n"
                "Use DistributedOptimizer(..., weight_by=f), where f(x, y, sample_weight) returns "
                "the number that shall count, or weight_by=None for ranks that count alike."
            )

    def _rows(self) -> Any:
        """Returns the number of rows: of the targets, if there are any."""
        x, y, _ = self._batch
        first = next(t for t in (*tf.nest.flatten(y), *tf.nest.flatten(x)) if t is not None)
        return tf.cast(tf.shape(first)[0], tf.float32)


def current(hook: Any) -> TrainStep | None:
    """Returns the step that this thread is in, if it is one of the model of this hook."""
    step = _steps.now
    return step if step is not None and step.hook is hook else None


def install() -> None:
    """Replaces the functions; a second call changes nothing."""
    _trainer.train_step = _train_step
    _losses.reduce_weighted_values = _reduce
    _CompileLoss.__call__ = _compiled


@functools.wraps(_original_step)
def _train_step(self: Any, data: Any) -> Any:
    hook = find_hook(self.optimizer)
    if hook is None:
        with unreduced.taking_gradients():
            return _original_step(self, data)
    if hook.options.weight_by is None:
        return _original_step(self, data)
    step = TrainStep(hook, data)
    before, _steps.now = _steps.now, step
    try:
        # A tape within the forward pass does not take gradients of the loss.
        with backward.counted(lambda: hook.count() if step.has_loss else None):
            result = _original_step(self, data)
        step.warn(self, hook.options)
        return result
    finally:
        _steps.now = before


@functools.wraps(_original_reduce)
def _reduce(
    values: Any,
    sample_weight: Any = None,
    mask: Any = None,
    reduction: Any = "sum_over_batch_size",
    dtype: Any = None,
) -> Any:
    step = _steps.now
    if step is not None:
        step.add(values, sample_weight, mask, reduction)
    return _original_reduce(values, sample_weight, mask, reduction, dtype)


@functools.wraps(_original_compiled)
def _compiled(self: Any, *args: Any, **kwargs: Any) -> Any:
    call = functools.partial(_original_compiled, self, *args, **kwargs)
    step = _steps.now
    return call() if step is None else step.compiled(call)


def _graph() -> Any:
    """Returns the graph that this thread traces; None if it computes eagerly."""
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def _size(tensor: Any) -> Any:
    return tf.cast(tf.size(tensor, out_type=tf.int64), tf.float32)


@functools.cache
def _say(text: str) -> None:
    warnings.warn(f"tfring: {text}", stacklevel=2)
