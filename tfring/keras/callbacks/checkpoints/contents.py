"""What a checkpoint of a model holds, and how it gets back into a model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfring import topology
from tfring.checkpoint import CheckpointError
from tfring.keras.callbacks import state
from tfring.keras2 import detect, facts

_SEED = "seed_generator_state"
_LISTED = 5  # variables in a message
# Keras numbers layers and optimizers that have no name of their own through the whole process.
_NUMBER = re.compile(r"_\d+(?=[_/]|$)")


def refuse_keras_2(model: Any) -> None:
    """Raises NotImplementedError for a model of Keras 2."""
    if detect.is_model(model):
        raise NotImplementedError(
            "checkpoints of tfring are for models of Keras 3: with Keras 2 save the model on rank "
            "0, and load it with hvd.load_model"
        )


class Contents:
    """The variables of a model and its optimizers that all ranks have in common, by name.

    Left out: variables that are a rank's own (local layers), gradients that a rank has accumulated,
    and the states of seed generators, which differ between ranks and are kept for each.
    """

    def __init__(self, model: Any, optimizer: Any = None, local: Sequence[Any] = ()) -> None:
        """Finds the variables.

        Args:
            model: a model of Keras 3 that is built.
            optimizer: one that cannot be reached from the model, as in a loop of the user's.
            local: variables of the model that are this rank's own.

        Raises:
            CheckpointError: the model is not built.
        """
        if not model.built:
            raise CheckpointError(
                f"rank {topology.rank()}: the model {model.name!r} has no weights yet: give its "
                "first layer a keras.Input, or call it once, before a checkpoint is made or loaded"
            )
        self.model = model
        self._optimizer = optimizer
        self._local = state.local_variables(model, local)

    def variables(self) -> dict[str, Any]:
        """Returns what is kept, in the same order on all ranks."""
        known = state.shared_state(self.model, self._local, accumulators=False)
        if self._optimizer is not None:
            ids = {id(v) for v in known}
            known += [v for v in facts.variables_of(self._optimizer) if id(v) not in ids]
        named: dict[str, Any] = {}
        for kind, variables in (
            ("model", state.shared_weights(self.model, self._local)),
            ("optimizer", known),
        ):
            for variable in variables:
                path = name = f"{kind}/{getattr(variable, 'path', None) or variable.name}"
                number = 1
                while name in named:
                    number += 1
                    name = f"{path}#{number}"
                named[name] = variable
        return named

    def left_out(self) -> list[Any]:
        """Returns the trainable variables that are this rank's own."""
        return list(self._local)

    def arrays(self) -> dict[str, Any]:
        """Returns copies of the values."""
        return {name: variable.numpy() for name, variable in self.variables().items()}

    def built(self) -> dict[str, Any]:
        """Returns which of the model's weights each optimizer trains; see build_alike."""
        return {
            "reached": state.built_with(self.model),
            "given": self._optimizer is not None and bool(self._optimizer.built),
        }

    def build_alike(self, described: Mapping[str, Any]) -> None:
        """Builds optimizers that are not built, as they were in the run that `built` described."""
        state.build_alike(self.model, [described["reached"]])
        if described["given"] and self._optimizer is not None and not self._optimizer.built:
            facts.build_for(self._optimizer, facts.weights_of(self.model, trainable=True))

    def assign(self, order: Sequence[str], values: Mapping[str, Any]) -> None:
        """Gives the variables the values of a checkpoint: all of them, or none.

        Args:
            order: the names of `variables` in the run that saved.
            values: by these names.

        Raises:
            CheckpointError: the model or its optimizers have other variables.
        """
        mine = self.variables()
        pairs = [
            (name, variable, values[their])
            for (name, variable), their in zip(mine.items(), _matched(mine, order), strict=True)
        ]
        for name, variable, value in pairs:
            has = (tuple(variable.shape), _dtype_of(variable))
            if has != (value.shape, value.dtype.name):
                raise CheckpointError(
                    f"{name} has shape {has[0]} and dtype {has[1]}, and in the checkpoint shape "
                    f"{value.shape} and dtype {value.dtype.name}"
                )
        for _, variable, value in pairs:
            variable.assign(value)

    def seeds(self) -> list[list[int]]:
        """Returns the states of this rank's seed generators."""
        return [variable.numpy().tolist() for variable in self._seed_variables()]

    def set_seeds(self, seeds: Sequence[Sequence[int]]) -> None:
        """Gives the seed generators the states that `seeds` returned, if there are as many."""
        variables = self._seed_variables()
        if len(variables) == len(seeds):
            for variable, value in zip(variables, seeds, strict=True):
                variable.assign(np.array(value, _dtype_of(variable)))

    def _seed_variables(self) -> list[Any]:
        return [v for v in self.model.variables if v.name.split("/")[-1] == _SEED]


def _matched(mine: Mapping[str, Any], theirs: Sequence[str]) -> Sequence[str]:
    """Returns the name in the checkpoint of each of our variables.

    Names are equal, or differ in numbers that Keras gives, and then the order counts.
    """
    if set(mine) == set(theirs):
        return list(mine)
    if [_NUMBER.sub("", name) for name in mine] == [_NUMBER.sub("", name) for name in theirs]:
        return theirs
    missing = [name for name in theirs if name not in mine]
    more = [name for name in mine if name not in theirs]
    raise CheckpointError(
        f"the checkpoint is of another model or optimizer: {_listed(missing)} only in the "
        f"checkpoint, {_listed(more)} only in the model"
    )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return (", ".join(names[:_LISTED]) or "nothing") + more


def _dtype_of(variable: Any) -> str:
    dtype = variable.dtype
    return str(getattr(dtype, "name", dtype))
