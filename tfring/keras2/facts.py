"""What the callbacks ask of an optimizer or model, answered for Keras 2 where it is one of those.

The callbacks of tfring.keras are written for Keras 3 and work with models of Keras 2, too, because
they ask these functions wherever the two differ.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfring.keras2 import detect
from tfring.keras2.hook import Keras2Hook, build


class Keras2Callback:
    """What Keras 2 asks of a callback and Keras 3 does not: which hooks per batch it has."""

    _supports_tf_logs = False  # these callbacks want numbers

    def _implements_train_batch_hooks(self) -> bool:
        return True

    def _implements_test_batch_hooks(self) -> bool:
        return False

    def _implements_predict_batch_hooks(self) -> bool:
        return False


def is_hook(value: Any) -> bool:
    """Returns whether a value is the hook of a Keras 2 optimizer."""
    return isinstance(value, Keras2Hook)


def is_variable(value: Any) -> bool:
    """Returns whether a value is a tf.Variable or one of Keras.

    With Keras before 3.7 weights of layers are no instances of keras.Variable.
    """
    return hasattr(value, "assign")


def number(value: Any) -> float:
    """Returns a variable or tensor of one element as a number.

    Variables of Keras before 3.5 cannot be converted by float().
    """
    return float(value.numpy() if hasattr(value, "numpy") else value)


def name_of(optimizer: Any) -> str:
    """Returns the name of an optimizer of either Keras; a legacy one has it in another place."""
    return str(getattr(optimizer, "name", None) or getattr(optimizer, "_name", "?"))


def variables_of(optimizer: Any) -> list[Any]:
    """Returns what an optimizer has learned or was told: state, learning rate, loss scale."""
    if not detect.is_optimizer(optimizer):
        return list(optimizer.variables)
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        scale = getattr(optimizer, "_loss_scale", None)
        return [*variables_of(inner), *getattr(scale, "_weights", {}).values()]
    if detect.is_legacy(optimizer):
        optimizer._create_hypers()
        known, told = optimizer.variables(), [v for _, v in sorted(optimizer._hyper.items())]
    else:
        known, told = optimizer.variables, [optimizer._learning_rate]
    seen = {id(v) for v in known}
    return [*known, *(v for v in told if isinstance(v, tf.Variable) and id(v) not in seen)]


def build_for(optimizer: Any, variables: Iterable[Any]) -> None:
    """Makes the state of an optimizer of either Keras for these variables."""
    inner = getattr(optimizer, "inner_optimizer", None)
    if detect.is_optimizer(optimizer):
        build(optimizer if inner is None else inner, list(variables))
    else:
        optimizer.build(list(variables))


def weights_of(model: Any, *, trainable: bool = False) -> list[Any]:
    """Returns the weights of a model of either Keras; none before it is built, as in Keras 3."""
    if detect.is_model(model) and not model.built:
        return []
    return list(model.trainable_variables if trainable else model.weights)


def slots_of(optimizer: Any, variables: Iterable[Any]) -> set[int]:
    """Returns the ids of a Keras 2 optimizer's own variables for these variables of the model.

    Args:
        optimizer: the innermost optimizer.
        variables: tf.Variables of the model.
    """
    keys = [_key_of(optimizer, v) for v in variables]
    if detect.is_legacy(optimizer):
        kept = [optimizer._slots[key] for key in keys if key in optimizer._slots]
        return {id(slot) for slots in kept for slot in slots.values()}
    indices = _indices_of(optimizer)
    return slots_at(optimizer, len(indices), [indices[key] for key in keys if key in indices])


def slots_at(optimizer: Any, count: int, positions: Iterable[int]) -> set[int]:
    """Returns the ids of an optimizer's own variables for some of the variables that it trains.

    Optimizers of both Keras, except legacy ones, keep them (momentums, for example) in lists of the
    same length and order as the list of what they train.

    Args:
        optimizer: the innermost optimizer.
        count: how many variables it trains.
        positions: which of them.
    """
    chosen = list(positions)
    lists = [
        value
        for name, value in vars(optimizer).items()
        if isinstance(value, list) and len(value) == count and name != "_variables"
    ]
    return {id(values[i]) for values in lists for i in chosen if values[i] is not None}


def velocities_of(optimizer: Any) -> list[Any]:
    """Returns the velocities of SGD or RMSprop of Keras 2 that have the learning rate in them."""
    if type(optimizer).__name__ not in ("SGD", "RMSprop"):
        return []
    if detect.is_legacy(optimizer):
        slots = optimizer._slots.values()
        return [by_name["momentum"] for by_name in slots if "momentum" in by_name]
    lists = (getattr(optimizer, name, ()) for name in ("momentums", "_momentums"))
    return [velocity for values in lists for velocity in values]


def has_settable_rate(optimizer: Any) -> bool:
    """Returns whether a Keras 2 optimizer was made with a number for learning_rate."""
    if detect.is_legacy(optimizer):
        rate = optimizer._hyper["learning_rate"]
        return isinstance(rate, tf.Variable) or not callable(rate)
    return isinstance(optimizer._learning_rate, tf.Variable)


def rate_of(optimizer: Any) -> float:
    """Returns the present learning rate of an optimizer of either Keras."""
    rate = optimizer.learning_rate
    if callable(rate) and not isinstance(rate, tf.Variable):  # a schedule of a legacy optimizer
        rate = rate(optimizer.iterations) if detect.is_optimizer(optimizer) else rate
    return number(rate)


def trained_by(optimizer: Any, weights: Iterable[Any]) -> list[Any]:
    """Returns the variables for which an optimizer of either Keras has been built.

    Args:
        optimizer: the innermost optimizer.
        weights: those of the model; a Keras 2 optimizer keeps keys of its variables only.
    """
    if not detect.is_optimizer(optimizer):
        return list(getattr(optimizer, "_trainable_variables", None) or ())
    keys = optimizer._slots if detect.is_legacy(optimizer) else _indices_of(optimizer)
    return [v for v in weights if _key_of(optimizer, v) in keys]


def is_built(optimizer: Any) -> bool:
    """Returns whether an optimizer of either Keras has its state."""
    if not detect.is_optimizer(optimizer):
        return bool(optimizer.built)
    inner = getattr(optimizer, "inner_optimizer", None) or optimizer
    return bool(inner._slots if detect.is_legacy(inner) else getattr(inner, "_built", False))


def loss_tracker(model: Any) -> Any:
    """Returns the metric that counts samples in a model of either Keras, or None."""
    if detect.is_model(model):
        return getattr(getattr(model, "compiled_loss", None), "_loss_metric", None)
    return getattr(model, "_loss_tracker", None)


def _key_of(optimizer: Any, variable: Any) -> Any:
    if detect.is_legacy(optimizer):
        return variable._shared_name if variable._in_graph_mode else variable._unique_id
    return optimizer._var_key(variable)


def _indices_of(optimizer: Any) -> Any:
    return getattr(optimizer, "_index_dict", {})
