"""The names of variables in a checkpoint, which follow from the structure of model and optimizers.

Keras' own names do not: they depend on how many layers the process has made, and on whether `fit`
or the program has built an optimizer. In a checkpoint a weight is named by its place among the
model's weights, a variable of an optimizer by the place of the optimizer, the attribute that holds
it, and the weight that it belongs to:

    model/3/kernel                        the fourth weight
    optimizer/_velocities/3/kernel        of Adam, for the fourth weight
    optimizer/inner_optimizer/_iterations of the optimizer in a LossScaleOptimizer
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfring.keras import facts
from tfring.keras.model_optimizers import is_optimizer
from tfring.training.local_variables import variable_key

# Keras numbers variables that have no name of their own through the whole process, and ":0" ends
# the names of Keras 2.
_NUMBERS = re.compile(r"(_\d+)?(:\d+)?$")


def variable_names(weights: Sequence[Any], optimizers: Mapping[str, Any]) -> dict[int, str]:
    """Returns the names of a model's weights and of its optimizers' variables, by their ids.

    Args:
        weights: all weights of the model, in its order.
        optimizers: by their place in the model.
    """
    last = [_NUMBERS.sub("", weight.name.split("/")[-1]) for weight in weights]
    of_weights = {variable_key(w): f"{i}/{last[i]}" for i, w in enumerate(weights)}
    names = {id(weight): f"model/{of_weights[variable_key(weight)]}" for weight in weights}
    found = list(_with_those_inside(optimizers))
    for place, optimizer in found:
        for slot, weight, own in facts.slots_of(optimizer, weights):
            name = f"{place}/{slot}/{of_weights[variable_key(weight)]}"
            names.setdefault(id(own), name)
        for path, value in _held(place, optimizer):
            if facts.is_variable(value):
                names.setdefault(id(value), path)
    for place, optimizer in found:
        others = [v for v in facts.variables_of(optimizer) if id(v) not in names]
        names.update((id(v), f"{place}/variables/{i}") for i, v in enumerate(others))
    return names


def _with_those_inside(optimizers: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields optimizers and those that they hold, each once, with their places."""
    waiting, seen = list(optimizers.items()), set()
    for place, optimizer in waiting:
        if id(optimizer) not in seen:
            seen.add(id(optimizer))
            yield place, optimizer
            held = _held(place, optimizer)
            waiting += [(path, value) for path, value in held if is_optimizer(value)]


def _held(place: str, optimizer: Any) -> Iterator[tuple[str, Any]]:
    """Yields what the attributes of an optimizer hold, and what is in their lists and dicts."""
    for attribute, value in vars(optimizer).items():
        path = f"{place}/{attribute}"
        if attribute in facts.NOT_SLOTS or attribute.startswith("_self_"):  # TensorFlow's
            continue
        if isinstance(value, dict):
            yield from ((f"{path}/{key}", each) for key, each in value.items())
        elif isinstance(value, (list, tuple)):
            yield from ((f"{path}/{i}", each) for i, each in enumerate(value))
        else:
            yield path, value
