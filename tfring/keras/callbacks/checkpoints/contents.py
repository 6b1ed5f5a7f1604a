"""The contents of a model's checkpoint, and how they get back into a model."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfring.checkpoint import CheckpointError
from tfring.checkpoint.arrays import dtype_of
from tfring.checkpoint.manifest import Part
from tfring.collectives.variables import broadcast_variables
from tfring.keras import facts
from tfring.keras.callbacks import state
from tfring.keras.gradient_hook import innermost
from tfring.keras.model_optimizers import is_optimizer, optimizers_of, refuse_parts_of_sets
from tfring.keras.sharded_state import ShardedState
from tfring.runtime import topology
from tfring.training.local_variables import variable_key

TRAINING = "tfring"  # the key of metadata under which the position of training is kept
_LISTED = 5  # variables in a message
# Keras numbers variables that have no name of their own through the whole process, and ":0" ends
# the names of Keras 2.
_NUMBERS = re.compile(r"(_\d+)?(:\d+)?$")


class Contents:
    """The variables of a model and its optimizers that all ranks have in common, by name.

    It leaves out a rank's own variables (local layers), gradients that a rank has accumulated, and
    what is kept of each rank: random states, and the metrics of the epoch.
    """

    def __init__(self, model: Any, optimizer: Any = None, local: Sequence[Any] = ()) -> None:
        """Finds the variables.

        Args:
            model: a built model of either Keras.
            optimizer: one that cannot be reached from the model, as in a loop of the user's.
            local: this rank's own variables of the model.

        Raises:
            CheckpointError: the model is not built.
            NotImplementedError: a process set shares the states of an optimizer.
        """
        refuse_parts_of_sets(model, "a checkpoint")
        if not model.built:
            raise CheckpointError(
                f"rank {topology.rank()}: the model {model.name!r} has no weights yet: give its "
                "first layer a keras.Input, or call it once, before a checkpoint is made or loaded"
            )
        self.model = model
        self._optimizer = optimizer
        self.local = state.local_variables(model, local)

    def variables(self) -> dict[str, Any]:
        """Returns the saved variables by structural names, in the same order on all ranks."""
        optimizers = optimizers_of(self.model)
        known = state.shared_state(self.model, self.local, accumulators=False)
        if self._optimizer is not None:
            known += facts.variables_of(self._optimizer)
            place = "given optimizer" if "optimizer" in optimizers else "optimizer"
            optimizers[place] = self._optimizer
        names = variable_names(facts.weights_of(self.model), optimizers)
        kept = [*state.shared_weights(self.model, self.local), *known]
        return {names[id(v)]: v for v in kept} | self._sharded(names)

    def _sharded(self, names: Mapping[int, str]) -> dict[str, Any]:
        """Returns the sharded states, except accumulated gradients."""
        inner = [innermost(optimizer) for optimizer in optimizers_of(self.model).values()]
        accumulated = set().union(*map(state.accumulators_of, inner))
        states = state.sharded_states(self.model)
        return {names[key]: each for key, each in states.items() if key not in accumulated}

    def gathered(self, shares: Mapping[int, Sequence[str]]) -> dict[str, Any]:
        """Returns the whole states that this rank is to write; a collective.

        Args:
            shares: the names of the variables that each rank writes.
        """
        writers = {name: rank for rank, names in shares.items() for name in names}
        whole = {}
        for name, each in self.variables().items():
            if isinstance(each, ShardedState):
                value = each.gather(writers[name], f"tfring.checkpoint.gather.{name}")
                if value is not None:
                    whole[name] = value
        return whole

    def sizes(self) -> dict[str, int]:
        """Returns the bytes of each variable, the same on all ranks."""
        return {name: facts.bytes_of(variable) for name, variable in self.variables().items()}

    def arrays(self, names: Sequence[str], whole: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the values as views for numpy, one after the other, without a copy.

        `whole` has the values of sharded states.
        """
        variables = self.variables()
        return {name: whole[name] if name in whole else _Read(variables[name]) for name in names}

    def built(self) -> dict[str, Any]:
        """Returns which of the model's weights each optimizer trains, for build_alike."""
        return {
            "reached": state.built_with(self.model),
            "given": self._optimizer is not None and facts.is_built(self._optimizer),
        }

    def build_alike(self, described: Mapping[str, Any]) -> None:
        """Builds optimizers that are not built, as in the run that `built` described."""
        state.build_alike(self.model, [described["reached"]])
        given = self._optimizer
        if described["given"] and given is not None and not facts.is_built(given):
            facts.build_for(given, facts.weights_of(self.model, trainable=True))

    def refuse_others(self, parts: Mapping[str, Part]) -> None:
        """Raises CheckpointError if a checkpoint with these parts is of other variables."""
        mine = self.variables()
        _refuse_others(mine, parts)
        for name, variable in mine.items():
            has = (tuple(variable.shape), _dtype_of(variable))
            saved = (parts[name].shape, dtype_of(parts[name]).name)
            if has != saved:
                raise CheckpointError(
                    f"{name} ({_path_of(variable)}) has shape {has[0]} and dtype {has[1]}, and in "
                    f"the checkpoint shape {saved[0]} and dtype {saved[1]}"
                )

    def give(self, shares: Mapping[int, Sequence[str]], values: dict[str, Any]) -> None:
        """Gives the variables of all ranks the values that some have read; a collective.

        Args:
            shares: the names of the variables that each rank has read.
            values: those of this rank; it takes them out of the dictionary.
        """
        variables = self.variables()
        for reader, names in shares.items():
            common = [name for name in names if not isinstance(variables[name], ShardedState)]
            for name in [name for name in common if name in values]:
                variables[name].assign(values.pop(name))
            if common:
                broadcast_variables([variables[name] for name in common], root_rank=reader)
            for name in sorted(set(names) - set(common)):
                value = values.pop(name, None)
                variables[name].scatter(value, reader, f"tfring.checkpoint.scatter.{name}")


@dataclasses.dataclass(frozen=True)
class _Read:
    """A variable as numpy sees it; on the CPU its own memory, which `numpy()` would copy."""

    variable: Any

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.asarray(tf.convert_to_tensor(self.variable), dtype)


def _refuse_others(mine: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    missing = [name for name in saved if name not in mine]
    more = [f"{name} ({_path_of(mine[name])})" for name in mine if name not in saved]
    if missing or more:
        raise CheckpointError(
            f"the checkpoint is of a different model or optimizer: {_listed(missing)} only in the "
            f"checkpoint, {_listed(more)} only in the model"
        )


def _path_of(variable: Any) -> str:
    return str(getattr(variable, "path", None) or variable.name)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return (", ".join(names[:_LISTED]) or "nothing") + more


def _dtype_of(variable: Any) -> str:
    dtype = variable.dtype
    return str(getattr(dtype, "name", dtype))


def variable_names(weights: Sequence[Any], optimizers: Mapping[str, Any]) -> dict[int, str]:
    """Returns the names of a model's weights and of its optimizers' variables, by their ids.

    Keras' own names depend on how many layers the process has made, and on whether `fit` or the
    program has built an optimizer. In a checkpoint a weight is named by its place among the model's
    weights, a variable of an optimizer by the place of the optimizer, the attribute that holds it,
    and the weight that it belongs to::

        model/3/kernel                        the fourth weight
        optimizer/_velocities/3/kernel        of Adam, for the fourth weight
        optimizer/inner_optimizer/_iterations of the optimizer in a LossScaleOptimizer

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
