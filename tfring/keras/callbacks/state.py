"""Which variables of a model and its optimizer the ranks have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tfring.keras.hook import find_hook, innermost
from tfring.keras2 import detect, facts


def local_variables(model: Any, given: Iterable[Any]) -> list[Any]:
    """Returns the given variables, and those that are registered as local with the optimizer."""
    optimizer = getattr(model, "optimizer", None)
    hook = None if optimizer is None else find_hook(optimizer)
    registered = [] if hook is None else hook.local_among(facts.weights_of(model, trainable=True))
    return [*given, *registered]


def shared_weights(model: Any, local: Iterable[Any] = ()) -> list[Any]:
    """Returns the model's weights without the local ones."""
    left_out = {id(variable) for variable in local}
    return [variable for variable in facts.weights_of(model) if id(variable) not in left_out]


def shared_state(model: Any, local: Iterable[Any] = (), *, accumulators: bool = True) -> list[Any]:
    """Returns the optimizer's variables without those that belong to local ones.

    Args:
        model: a compiled model.
        local: variables of the model that are this rank's own.
        accumulators: whether to include the gradients accumulated so far; during training they are
            this rank's part of an update to come.
    """
    if getattr(model, "optimizer", None) is None:
        return []
    inner = innermost(model.optimizer)
    if detect.is_optimizer(inner):
        left_out = facts.slots_of(inner, local)
    else:
        left_out = _slots(inner, {id(variable) for variable in local})
    if not accumulators:
        left_out |= {id(v) for v in getattr(inner, "_accumulated_gradients", None) or ()}
    known = facts.variables_of(model.optimizer)
    return [variable for variable in known if id(variable) not in left_out]


def _slots(optimizer: Any, variables: set[int]) -> set[int]:
    """Returns the ids of the optimizer's own variables for these variables of the model.

    Keras keeps them (momentums, for example) in lists of the same length and order as the list of
    the model's variables.
    """
    trained = getattr(optimizer, "_trainable_variables", None) or []
    positions = [i for i, variable in enumerate(trained) if id(variable) in variables]
    if not positions:
        return set()
    lists = [
        value
        for name, value in vars(optimizer).items()
        if isinstance(value, list) and len(value) == len(trained) and name != "_variables"
    ]
    return {id(values[i]) for values in lists for i in positions if values[i] is not None}
