"""Tells Keras layers that their variables were assigned.

A Normalization layer computes with tensors that its `finalize_state` makes from its weights. Keras
calls it after loading weights; any other code that assigns them must call it, too. A variable does
not know its layer, so this module searches the objects of this process. That takes about 0.1 s, and
is done only if a variable has the name that such a layer gives it.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

_WEIGHTS = ("adapt_mean", "adapt_variance")  # attributes of a layer
_NAME = "mean"  # of the first weight


def finalize(variables: Iterable[Any]) -> None:
    """Calls `finalize_state` of the layers whose statistics are among these variables.

    Args:
        variables: tf.Variable or keras.Variable, with their new values.
    """
    found = {id(_value(v)) for v in variables if _last_part(v) == _NAME and not v.trainable}
    if not found or not tf.executing_eagerly():
        return
    for layer in _layers():
        if any(id(_value(getattr(layer, name, None))) in found for name in _WEIGHTS):
            layer.finalize_state()


def _layers() -> list[Any]:
    """Returns all objects whose class has a finalize_state."""
    known: dict[type, bool] = {}

    def finalizes(kind: type) -> bool:
        if kind not in known:
            known[kind] = callable(getattr(kind, "finalize_state", None))
        return known[kind]

    return [each for each in gc.get_objects() if finalizes(type(each))]


def _last_part(variable: Any) -> str:
    return str(getattr(variable, "name", "")).split(":")[0].split("/")[-1]


def _value(variable: Any) -> Any:
    """Returns the tf.Variable in a keras.Variable."""
    inner = getattr(variable, "value", None)
    return variable if inner is None or callable(inner) else inner
