"""All optimizers of a model: that of `compile`, and those in attributes, containers, sub-models."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from tfring.keras import detect
from tfring.keras.gradient_hook import find_hook, innermost
from tfring.runtime import process_sets, topology

_LONGEST = 1000  # elements of a container that is searched; a longer one holds data
_PLAIN = {type(None), bool, int, float, str, bytes, types.FunctionType, types.MethodType}


def optimizers_of(model: Any) -> dict[str, Any]:
    """Returns the Keras optimizers that can be reached from a model, by their path.

    It looks into attributes of the model, of its layers and sub-models, and of tf.Modules, and into
    lists, tuples and dicts there, except very long ones. A path is written as in Python code:
    "optimizer" for that of `compile`, "gan.optimizers[1]". Ranks that build the model alike get the
    same paths in the same order. An optimizer inside another one (LossScaleOptimizer,
    MultiOptimizer) is left out.
    """
    reached = reachable(model)
    found = {path: value for path, value in reached.items() if is_optimizer(value)}
    inside = {id(part) for optimizer in found.values() for part in _inside(optimizer)}
    return {path: found[path] for path in found if id(found[path]) not in inside}


def reachable(model: Any) -> dict[str, Any]:
    """Returns what a model holds, by its path, but not what optimizers hold; see optimizers_of.

    Numbers, texts and functions are left out.
    """
    found: dict[str, Any] = {}
    seen: set[int] = set()
    waiting = [("", model)]
    while waiting:
        path, value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        found[path] = value
        if not is_optimizer(value):
            waiting.extend(_children(path, value))
    return found


def hooks_of(model: Any) -> dict[str, Any]:
    """Returns the hooks of the optimizers that DistributedOptimizer has wrapped, by path."""
    hooks = {path: find_hook(optimizer) for path, optimizer in optimizers_of(model).items()}
    return {path: hook for path, hook in hooks.items() if hook is not None}


def sharded_hooks(model: Any) -> list[Any]:
    """Returns those of hooks_of with shard_states=True."""
    return [hook for hook in hooks_of(model).values() if hook.shards is not None]


def refuse_parts_of_sets(model: Any, what: str) -> None:
    """Raises NotImplementedError if a process set shares states (shard_states=True).

    Ranks of other sets have other states, and ranks outside have whole ones. `what` would need the
    same on all ranks.
    """
    for path, hook in hooks_of(model).items():
        members = hook.process_set
        if not hook.options.shard_states or process_sets.checked_id(members) == 0:
            continue
        if members.size() > 1:
            raise NotImplementedError(
                f"rank {topology.rank()}: {what} needs the same states on all ranks, and {path} "
                f"has parts of them for ranks {members.ranks} alone (shard_states=True and "
                "process_set).\nLeave it out. Give equal weights by hvd.broadcast_variables("
                "model.weights, root, process_set=...), and save with "
                "hvd.save_model(..., process_set=...)."
            )


def is_optimizer(value: Any) -> bool:
    """Returns whether a value is an optimizer of either Keras."""
    return isinstance(value, keras.optimizers.Optimizer) or detect.is_optimizer(value)


def parts_of(optimizer: Any) -> list[Any]:
    """Returns the innermost optimizers, those that have a learning rate: several in a few cases."""
    inner = innermost(optimizer)
    return list(getattr(inner, "optimizers", None) or [inner])


def _children(path: str, value: Any) -> list[tuple[str, Any]]:
    """Returns what a value holds, the last first, without numbers, texts and functions.

    It runs for hundreds of values at many points of `fit`. So it makes only the paths that are
    needed, and asks for the slow abstract class last.
    """
    if isinstance(value, (list, tuple)):
        if not value or len(value) > _LONGEST:
            return []
        held = [(f"{path}[{i}]", child) for i, child in enumerate(value) if _is_held(child)]
    elif isinstance(value, (keras.layers.Layer, tf.Module)):
        prefix = f"{path}." if path else ""
        # What TensorFlow itself keeps (_self_...) holds everything once more.
        names = [
            name
            for name, child in vars(value).items()
            if _is_held(child) and not name.startswith("_self_")
        ]
        names.sort(key=lambda name: name.startswith("_"))
        held = [(f"{prefix}{name}", vars(value)[name]) for name in names]
    elif isinstance(value, Mapping) and len(value) <= _LONGEST:
        held = [(f"{path}[{key!r}]", child) for key, child in value.items() if _is_held(child)]
    else:
        return []
    return held[::-1]


def _is_held(value: Any) -> bool:
    return type(value) not in _PLAIN


def _inside(optimizer: Any) -> Iterator[Any]:
    while (inner := getattr(optimizer, "inner_optimizer", None)) is not None:
        yield inner
        optimizer = inner
    yield from getattr(optimizer, "optimizers", None) or ()
