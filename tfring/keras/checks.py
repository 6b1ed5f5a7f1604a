"""Refuses training that would not reduce gradients, or makes it reduce them where that is possible.

The callbacks of tfring call this; a plain optimizer is noticed only where there is one of them.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from typing import Any

import keras

from tfring import topology
from tfring.keras.hook import find_hook
from tfring.keras2 import detect, facts
from tfring.ops import library
from tfring.training.reduction_record import reductions

# By model: the train function that was made while the hook was in place, and the hook. Both refer
# to the model, which would never be freed if they were not held weakly.
_verified: weakref.WeakKeyDictionary[Any, tuple[Any, Any]] = weakref.WeakKeyDictionary()


def before_train_function(model: Any) -> None:
    """Called when a callback is given its model: before `fit` makes or reuses the train function.

    A train function that was traced before the optimizer was wrapped would go on without reducing.
    It is dropped, unless an earlier call verified it, and `fit` makes another.
    """
    if model is None or getattr(model, "optimizer", None) is None:
        return
    if _needs_reduction(model) and model.jit_compile and (reason := library.xla_trouble()):
        warnings.warn(
            "tfring: this model has jit_compile=True (Keras chooses that by itself when it sees a "
            f"GPU), and collectives cannot be compiled by XLA: {reason}. Training goes on with "
            "jit_compile=False. Compile the model with jit_compile=False to avoid this message.",
            stacklevel=2,
        )
        model.jit_compile = False
        model.train_function = None
    known = _verified.get(model)
    current = (model.train_function, _hook_of(model))
    if known is None or any(ref() is not value for ref, value in zip(known, current, strict=True)):
        model.train_function = None
        _verified.pop(model, None)


def at_train_begin(model: Any) -> None:
    """Raises RuntimeError when `fit` is about to train with an optimizer that does not reduce."""
    hook = _hook_of(model)
    if hook is None and not _has_own_train_step(model) and topology.size() > 1:
        optimizer = model.optimizer
        raise RuntimeError(
            f"rank {topology.rank()}: the model's optimizer {facts.name_of(optimizer)!r} "
            f"({type(optimizer).__name__}) does not reduce gradients over the {topology.size()} "
            "ranks: each would train a model of its own. Give compile() the optimizer that "
            "DistributedOptimizer returned. (load_model, clone, pickle and from_config "
            "make plain optimizers: wrap those again.)"
        )
    if hook is not None:
        _remember(model, hook)


class ReductionWatch:
    """Checks that a model with a train_step of its own reduced gradients in its first batch.

    Such a model may use a DistributedGradientTape, so a plain optimizer is no reason to refuse it.
    Made before the first batch, when the train function has not been traced yet; the record of
    reductions then says whether a gradient was reduced while it was. Of what is not asked: a model
    may hold variables that Keras does not know.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._wanted = (
            _hook_of(model) is None
            and _has_own_train_step(model)
            and topology.size() > 1
            and model not in _verified  # else nothing is traced, and so nothing recorded
        )
        self._begin = reductions.now()

    def after_first_batch(self) -> None:
        """Raises RuntimeError if no gradient of the model was reduced since the watch was made."""
        if not self._wanted:
            return
        if not reductions.any_since(self._begin):
            raise RuntimeError(
                f"rank {topology.rank()}: the model's own train_step ran and no gradient was "
                "reduced over the ranks: wrap the optimizer in DistributedOptimizer, or the tape "
                "in DistributedGradientTape"
            )
        _remember(self._model, None)
        self._wanted = False


def _remember(model: Any, hook: Any) -> None:
    _verified[model] = (_weak(model.train_function), _weak(hook))


def _weak(value: Any) -> Callable[[], Any]:
    return weakref.ref(value) if value is not None else lambda: None


def _hook_of(model: Any) -> Any:
    return find_hook(model.optimizer) if model.optimizer is not None else None


def _needs_reduction(model: Any) -> bool:
    return _hook_of(model) is not None or _has_own_train_step(model)


def _has_own_train_step(model: Any) -> bool:
    if detect.is_model(model):
        return facts.has_own_train_step(model)
    return type(model).train_step is not keras.Model.train_step
