"""All optimizers of a model: that of `compile`, and those in attributes, containers, sub-models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from tfring.keras.hook import innermost
from tfring.keras2 import detect

_LONGEST = 1000  # elements of a container that is looked into; what is longer holds data


def optimizers_of(model: Any) -> dict[str, Any]:
    """Returns the Keras optimizers that can be reached from a model, by their path.

    Looks into attributes of the model, of its layers and sub-models, and of tf.Modules, and into
    lists, tuples and dicts there, but not into very long ones. A path is how Python code writes it,
    "optimizer" for that of `compile`, "gan.optimizers[1]"; ranks that build the model alike get the
    same paths in the same order. An optimizer inside another one (LossScaleOptimizer,
    MultiOptimizer) is left out.

    Args:
        model: a keras.Model, or None.
    """
    found: dict[str, Any] = {}
    seen: set[int] = set()
    waiting = [("", model)]
    while waiting:
        path, value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, keras.optimizers.Optimizer) or detect.is_optimizer(value):
            found[path] = value
        else:
            waiting.extend(reversed(list(_children(path, value))))
    inside = {id(part) for optimizer in found.values() for part in _inside(optimizer)}
    return {path: found[path] for path in found if id(found[path]) not in inside}


def parts_of(optimizer: Any) -> list[Any]:
    """Returns the innermost optimizers, those that have a learning rate: several in a few cases."""
    inner = innermost(optimizer)
    return list(getattr(inner, "optimizers", None) or [inner])


def _children(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (list, tuple, Mapping)) and len(value) > _LONGEST:
        return
    if isinstance(value, (list, tuple)):
        yield from ((f"{path}[{i}]", child) for i, child in enumerate(value))
    elif isinstance(value, Mapping):
        yield from ((f"{path}[{key!r}]", child) for key, child in value.items())
    elif isinstance(value, (keras.layers.Layer, tf.Module)):
        prefix = f"{path}." if path else ""
        # What TensorFlow itself keeps (_self_...) holds everything once more.
        names = [name for name in vars(value) if not name.startswith("_self_")]
        for name in sorted(names, key=lambda name: name.startswith("_")):
            yield f"{prefix}{name}", vars(value)[name]


def _inside(optimizer: Any) -> Iterator[Any]:
    while (inner := getattr(optimizer, "inner_optimizer", None)) is not None:
        yield inner
        optimizer = inner
    yield from getattr(optimizer, "optimizers", None) or ()
