"""Makes Keras' LossScaleOptimizer decide alike on every rank.

Under mixed_float16 `compile` puts a LossScaleOptimizer around the optimizer. It looks for inf and
nan in the gradients and skips the update if it finds one: on that rank alone, while the others wait
in a collective. To prevent that:

- Without accumulation the gradients are reduced before it looks: an inf on one rank is then an inf
  on every rank. They travel without their scale, as ranks may have different ones (one that has
  loaded its state), and get this rank's scale back afterwards.
- With accumulation it looks at local gradients in every pass. Its result is reduced by Min, so that
  all ranks accumulate or all skip. The same holds where some variables are local, because only this
  rank has their gradients.

The methods, and `scale_loss` as in OptimizerHook, are replaced in the class: `compile` makes the
object later. So are those that save and load it, because it saves the states of the optimizer in it
once more. They change nothing for an optimizer that is not wrapped.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfring.keras.gradient_hook import find_hook
from tfring.runtime.keras_version import replaceable
from tfring.training import gate

_Scaling = keras.optimizers.LossScaleOptimizer
_WHAT = "tfring.keras.DistributedOptimizer"
_original_apply = replaceable(_Scaling, "apply", _WHAT)
_original_check_finite = replaceable(_Scaling, "check_finite", _WHAT)
_original_scale_loss = replaceable(_Scaling, "scale_loss", _WHAT)
_original_save = replaceable(_Scaling, "save_own_variables", _WHAT)
_original_load = replaceable(_Scaling, "load_own_variables", _WHAT)


def install() -> None:
    """Replaces the methods; a second call changes nothing."""
    _Scaling.apply = _apply
    _Scaling.check_finite = _check_finite
    _Scaling.scale_loss = _scale_loss
    _Scaling.save_own_variables = _save
    _Scaling.load_own_variables = _load


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def _apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
    hook = find_hook(self)
    grads = list(grads)
    if trainable_variables is not None:
        trainable_variables = list(trainable_variables)  # may be a generator
    if hook is None or hook.accumulates or hook.in_reduced_call or not grads:
        return _original_apply(self, grads, trainable_variables)
    if trainable_variables is None and not self.built:
        return _original_apply(self, grads, trainable_variables)  # which raises
    variables = list(trainable_variables or self._trainable_variables)
    if hook.shards is not None and not self.built:
        # Else `reduce` builds the inner optimizer alone. Then files have a variable of Nadam that
        # Keras hides if this class builds it.
        self.build(variables)
    scale = tf.convert_to_tensor(self.dynamic_scale if self.built else self.initial_scale)
    reduced = hook.reduce(grads, variables, unscale=scale)
    with hook.outer_reduced(), gate.closed_until(reduced):
        return _original_apply(self, reduced, trainable_variables)


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def _check_finite(self: Any, grads: Any) -> Any:
    finite = _original_check_finite(self, grads)
    hook = find_hook(self)
    if hook is None or not hook.finite_here_only:
        return finite
    return hook.agree_finite(finite)


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def _scale_loss(self: Any, loss: Any) -> Any:
    hook = find_hook(self)
    scaled = _original_scale_loss(self, loss)
    return scaled if hook is None else hook.announced(scaled)


def _save(self: Any, store: Any) -> None:
    hook = find_hook(self)
    if hook is None or hook.shards is None:
        _original_save(self, store)
    else:
        hook.shards.save(store, self._variables)


def _load(self: Any, store: Any) -> None:
    hook = find_hook(self)
    if hook is None or hook.shards is None:
        _original_load(self, store)
    else:
        hook.shards.load(store, self._variables)
