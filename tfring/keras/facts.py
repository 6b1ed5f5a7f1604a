"""Answers for either Keras: what callbacks and hooks ask about an optimizer or model.

The callbacks of tfring.keras are written for Keras 3. They also work with models of Keras 2,
because they ask these functions wherever the two differ.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from tfring.keras import detect
from tfring.training.local_variables import variable_key

# Lists of an optimizer: of all its variables, and of those that it trains.
NOT_SLOTS = ("_variables", "_trainable_variables")
# The attribute of a variable that is this rank's part of another one, which it names.
WHOLE = "_tfring_whole"


class Keras2Callback:
    """The per-batch hooks of a callback, for which Keras 2 asks and Keras 3 does not."""

    _supports_tf_logs = False  # these callbacks want numbers

    def _implements_train_batch_hooks(self) -> bool:
        return True

    def _implements_test_batch_hooks(self) -> bool:
        return False

    def _implements_predict_batch_hooks(self) -> bool:
        return False


def is_variable(value: Any) -> bool:
    """Returns whether a value is a tf.Variable or one of Keras.

    With Keras before 3.7 weights of layers are no instances of keras.Variable.
    """
    return hasattr(value, "assign")


def bytes_of(variable: Any) -> int:
    """Returns the bytes of a variable's value."""
    return int(math.prod(variable.shape) * tf.as_dtype(variable.dtype).size)


def number(value: Any) -> float:
    """Returns a variable or tensor of one element as a number.

    Variables of Keras before 3.5 cannot be converted by float().
    """
    return float(value.numpy() if hasattr(value, "numpy") else value)


def passes_of(optimizer: Any) -> Any:
    """Returns the variable that counts how often an optimizer of Keras 3 was given gradients."""
    # Before Keras 3.5 `iterations` is that count; from then on it counts updates.
    counter = getattr(optimizer, "_iterations", None)
    return optimizer.iterations if counter is None else counter


def loss_in(logs: Mapping[str, Any] | None) -> float | None:
    """Returns the loss in a callback's logs; None if there is none or it is no number.

    A `train_step` of one's own may return a loss of any shape.
    """
    loss = (logs or {}).get("loss")
    with contextlib.suppress(TypeError, ValueError):
        return None if loss is None else number(loss)
    return None


def name_of(optimizer: Any) -> str:
    """Returns the name of an optimizer of either Keras."""
    return str(getattr(optimizer, "name", None) or getattr(optimizer, "_name", "?"))


def variables_of(optimizer: Any) -> list[Any]:
    """Returns all variables of an optimizer: its state, learning rate, loss scale."""
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
    if detect.is_optimizer(optimizer):
        optimizer = getattr(optimizer, "inner_optimizer", None) or optimizer
        if detect.is_legacy(optimizer):
            optimizer._create_all_weights(list(variables))
            return
    optimizer.build(list(variables))


def weights_of(model: Any, *, trainable: bool = False) -> list[Any]:
    """Returns the weights of a model of either Keras; none before it is built, as in Keras 3."""
    if detect.is_model(model) and not model.built:
        return []
    return list(model.trainable_variables if trainable else model.weights)


def slots_of(optimizer: Any, variables: Iterable[Any]) -> list[tuple[str, Any, Any]]:
    """Returns the variables that an optimizer of either Keras keeps for those that it trains.

    All optimizers, except legacy ones, keep them (momentums, for example) in lists of the same
    length and order as the list of trained variables.

    Args:
        optimizer: the innermost optimizer.
        variables: of the model, trained by it or not.

    Returns:
        The name of a slot, the variable of the model, the optimizer's own variable for it.
    """
    if detect.is_optimizer(optimizer):
        keyed = [(_key_of(optimizer, v), v) for v in variables]
        if detect.is_legacy(optimizer):
            slots = vars(optimizer).get("_slots", {})
            return [(s, v, own) for key, v in keyed for s, own in slots.get(key, {}).items()]
        indices = _indices_of(optimizer)
        count, places = len(indices), [(indices[key], v) for key, v in keyed if key in indices]
    else:
        wanted = {variable_key(v) for v in variables}
        trained = [whole_of(v) for v in getattr(optimizer, "_trainable_variables", None) or []]
        count = len(trained)
        places = [(i, v) for i, v in enumerate(trained) if variable_key(v) in wanted]
    lists = {
        name: value
        for name, value in vars(optimizer).items()
        if isinstance(value, list) and len(value) == count and name not in NOT_SLOTS
    }
    return [
        (name, v, values[i])
        for name, values in lists.items()
        for i, v in places
        if is_variable(values[i])
    ]


def velocities_of(optimizer: Any) -> list[Any]:
    """Returns the velocities of SGD or RMSprop that have the learning rate in them."""
    if not {"SGD", "RMSprop"}.intersection(kind.__name__ for kind in type(optimizer).__mro__):
        return []
    if detect.is_optimizer(optimizer) and detect.is_legacy(optimizer):
        slots = optimizer._slots.values()
        return [by_name["momentum"] for by_name in slots if "momentum" in by_name]
    lists = (getattr(optimizer, name, None) or () for name in ("momentums", "_momentums"))
    return [velocity for values in lists for velocity in values if velocity is not None]


def has_settable_rate(optimizer: Any) -> bool:
    """Returns whether an optimizer of either Keras was made with a number for learning_rate."""
    if detect.is_optimizer(optimizer) and detect.is_legacy(optimizer):
        rate = optimizer._hyper["learning_rate"]
        return isinstance(rate, tf.Variable) or not callable(rate)
    return is_variable(getattr(optimizer, "_learning_rate", None))


def rate_of(optimizer: Any) -> float:
    """Returns the present learning rate of an optimizer of either Keras."""
    rate = optimizer.learning_rate
    if callable(rate) and not isinstance(rate, tf.Variable):  # a schedule of a legacy optimizer
        rate = rate(optimizer.iterations) if detect.is_optimizer(optimizer) else rate
    return number(rate)


def trained_by(optimizer: Any, weights: Iterable[Any]) -> list[Any]:
    """Returns the variables for which an optimizer of either Keras has been built.

    `weights` are those of the model: a Keras 2 optimizer keeps only keys of its variables.
    """
    if not detect.is_optimizer(optimizer):
        trained = getattr(optimizer, "_trainable_variables", None) or ()
        return [whole_of(variable) for variable in trained]
    keys = optimizer._slots if detect.is_legacy(optimizer) else _indices_of(optimizer)
    return [v for v in weights if _key_of(optimizer, v) in keys]


def whole_of(variable: Any) -> Any:
    """Returns the variable of the model of which `variable` is this rank's part; else itself."""
    return getattr(variable, WHOLE, variable)


def is_built(optimizer: Any) -> bool:
    """Returns whether an optimizer of either Keras has its state."""
    if not detect.is_optimizer(optimizer):
        return bool(optimizer.built)
    inner = getattr(optimizer, "inner_optimizer", None) or optimizer
    return bool(inner._slots if detect.is_legacy(inner) else getattr(inner, "_built", False))


def begin_fit_at(model: Any, epoch: int | None) -> None:
    """Sets the first epoch of the running `fit`; call it from on_train_begin.

    None restores the `initial_epoch` argument for the next `fit`.
    """
    if detect.is_model(model):
        model._training_state = None if epoch is None else _Beginning(epoch)
    else:
        model._initial_epoch = epoch


class _Beginning:
    """Answers Keras 2, which asks where `fit` resumes after a failure."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch

    def maybe_load_initial_counters_from_ckpt(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        """Returns the first epoch, and its first batch."""
        return self._epoch, 0


def loss_tracker(model: Any) -> Any:
    """Returns the metric that counts samples in a model of either Keras, or None."""
    if detect.is_model(model):
        return next(iter(getattr(getattr(model, "compiled_loss", None), "metrics", ())), None)
    return getattr(model, "_loss_tracker", None)


def _key_of(optimizer: Any, variable: Any) -> Any:
    if detect.is_legacy(optimizer):
        return variable._shared_name if variable._in_graph_mode else variable._unique_id
    return optimizer._var_key(variable)


def _indices_of(optimizer: Any) -> Any:
    return getattr(optimizer, "_index_dict", {})
