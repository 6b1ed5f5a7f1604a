"""Training steps that were traced before something about the optimizer changed.

A traced step does what it did when it was traced: it would go on without reducing after its
optimizer was wrapped. What Keras models keep is made anew. A tf.function of the user's own cannot
be, so it is made to fail: the variables that every step reads, the iteration count and the learning
rate, move to new storage, and the old gets a shape that no update can be computed with.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction


def drop_traces(optimizer: Any) -> None:
    """Sees to it that no step that was traced so far goes on unnoticed.

    Does nothing for an optimizer that is not built: no step has been traced with it.
    """
    if not optimizer.built or not tf.executing_eagerly():
        return
    for model in _objects_of(keras.Model):
        if model.__dict__.get("train_function") is not None and _uses(model, optimizer):
            model.make_train_function(force=True)
    variables = [v for part in _with_parts(optimizer) for v in _read_by_every_step(part)]
    if not _captured(variables):
        return
    gc.collect()
    if not _captured(variables):
        return
    for variable in variables:
        _move(variable)
    warnings.warn(
        f"tfring: optimizer {optimizer.name!r} was used in a tf.function before it was wrapped by "
        "DistributedOptimizer (or before register_local_var). That function would go on as it was "
        "traced, so it fails from now on, with incompatible shapes: make the tf.function anew.",
        stacklevel=2,
    )


def _uses(model: Any, optimizer: Any) -> bool:
    used = getattr(model, "optimizer", None)
    while used is not None and used is not optimizer:
        used = getattr(used, "inner_optimizer", None)
    return used is optimizer


def _with_parts(optimizer: Any) -> list[Any]:
    """The optimizer, and those that a MultiOptimizer hands gradients on to."""
    return [optimizer, *getattr(optimizer, "optimizers", ())]


def _read_by_every_step(optimizer: Any) -> list[Any]:
    candidates = (optimizer._iterations, optimizer._learning_rate)
    return [v for v in candidates if isinstance(v, keras.Variable)]


def _objects_of(kind: type) -> list[Any]:
    # By type(), not isinstance(): proxies among all these objects may do anything when asked.
    return [thing for thing in gc.get_objects() if issubclass(type(thing), kind)]


def _captured(variables: Iterable[Any]) -> bool:
    handles = {id(v.value.handle) for v in variables}
    return any(
        id(outer) in handles
        for function in _objects_of(ConcreteFunction)
        for outer in function.captured_inputs
    )


def _move(variable: Any) -> None:
    old = variable.value
    variable._value = tf.Variable(
        old.read_value(),
        trainable=old.trainable,
        name=old.name.split(":")[0],
        aggregation=old.aggregation,
        synchronization=old.synchronization,
    )
    nothing = tf.zeros([0], old.dtype)
    tf.raw_ops.AssignVariableOp(resource=old.handle, value=nothing, validate_shape=False)
