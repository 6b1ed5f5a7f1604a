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
    if detect.is_legacy(optimizer):
        names = optimizer.get_slot_names()
        kept = {key: slots for key, slots in optimizer._slots.items() if slots}
        keys = [v._shared_name if v._in_graph_mode else v._unique_id for v in variables]
        return {id(kept[key][n]) for key in keys if key in kept for n in names if n in kept[key]}
    indices = getattr(optimizer, "_index_dict", {})
    keys = [optimizer._var_key(v) for v in variables]
    positions = [indices[key] for key in keys if key in indices]
    lists = [
        value
        for name, value in vars(optimizer).items()
        if isinstance(value, list) and len(value) == len(indices) and name != "_variables"
    ]
    return {id(values[i]) for values in lists for i in positions if values[i] is not None}


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


def has_own_train_step(model: Any) -> bool:
    """Returns whether a Keras 2 model has a train_step that is not Keras' own."""
    return type(model).train_step is not detect.model_class().train_step


def loss_tracker(model: Any) -> Any:
    """Returns the metric that counts samples in a model of either Keras, or None."""
    if detect.is_model(model):
        return getattr(getattr(model, "compiled_loss", None), "_loss_metric", None)
    return getattr(model, "_loss_tracker", None)
