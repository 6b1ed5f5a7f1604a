"""Which variables of a model all ranks have in common, and what its callbacks decide."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras

from tfring.keras import detect, facts
from tfring.keras.gradient_hook import innermost
from tfring.keras.model_optimizers import (
    hooks_of,
    optimizers_of,
    parts_of,
    reachable,
    sharded_hooks,
)
from tfring.training.local_variables import variable_key
from tfring.training.reduction_record import reductions

# Optimizers of Keras whose state begins as a copy of the weights.
_COPY_WEIGHTS = ("ScheduleFreeAdamW",)


def as_list(variables: Any) -> list[Any]:
    """Returns the variables that a callback was given as a list: None, one of them, or several."""
    if variables is None:
        return []
    if facts.is_variable(variables):
        return [variables]
    return list(variables)


def local_variables(model: Any, given: Iterable[Any]) -> list[Any]:
    """Returns the given variables, and those that are local for an optimizer or a tape."""
    trained = facts.weights_of(model, trainable=True)
    of_hooks = [v for hook in hooks_of(model).values() for v in hook.local_among(trained)]
    return [*given, *of_hooks, *(v for v in trained if reductions.is_local(v))]


def shared_weights(model: Any, local: Iterable[Any] = ()) -> list[Any]:
    """Returns the model's weights without the local ones."""
    left_out = _keys(local)
    weights = facts.weights_of(model)
    return [variable for variable in weights if variable_key(variable) not in left_out]


def batch_norms(model: Any) -> list[Any]:
    """Returns the BatchNormalization layers of a model."""
    kind = keras.layers.BatchNormalization
    found = reachable(model).values()
    return [layer for layer in found if isinstance(layer, kind) or detect.is_batch_norm(layer)]


def moving_weights(model: Any, local: Iterable[Any] = ()) -> list[Any]:
    """Returns the weights that no gradient trains, without the local ones.

    It leaves out the statistics of BatchNormalization, which are each rank's own.
    """
    statistics = [weight for layer in batch_norms(model) for weight in layer.weights]
    weights = shared_weights(model, [*local, *statistics])
    return [weight for weight in weights if not weight.trainable]


def shared_state(model: Any, local: Iterable[Any] = (), *, accumulators: bool = True) -> list[Any]:
    """Returns the variables of the model's optimizers, except those for local variables.

    It leaves out sharded states, too. Without `accumulators` it also leaves out accumulated
    gradients: during training they are this rank's part of an update to come.
    """
    local, sharded = list(local), sharded_states(model)
    chosen: dict[int, Any] = {}
    for optimizer in optimizers_of(model).values():
        inner = innermost(optimizer)
        left_out = {id(own) for _, _, own in facts.slots_of(inner, local)}
        left_out |= set(sharded)
        if not accumulators:
            left_out |= accumulators_of(inner)
        known = facts.variables_of(optimizer)
        chosen.update((id(v), v) for v in known if id(v) not in left_out)
    return list(chosen.values())


def accumulators_of(inner: Any) -> set[int]:
    """Returns the ids of the variables in which an innermost optimizer accumulates gradients."""
    return {id(v) for v in getattr(inner, "_accumulated_gradients", None) or ()}


def sharded_states(model: Any) -> dict[int, Any]:
    """Returns the ShardedStates of the model's optimizers, by the ids of their variables."""
    found = [hook.shards.states() for hook in sharded_hooks(model)]
    return {key: state for states in found for key, state in states.items()}


def built_with(model: Any) -> dict[str, list[int] | None]:
    """Returns, for every optimizer, the positions among the model's weights of what it trains.

    None for an optimizer that is not built, or that trains variables that are not the model's.
    """
    weights = facts.weights_of(model)
    position = {variable_key(variable): i for i, variable in enumerate(weights)}
    described: dict[str, list[int] | None] = {}
    for path, optimizer in optimizers_of(model).items():
        trained = facts.trained_by(innermost(optimizer), weights)
        positions = [position.get(variable_key(variable)) for variable in trained]
        known = [p for p in positions if p is not None]
        described[path] = known if known and len(known) == len(positions) else None
    return described


def build_before_tracing(model: Any) -> None:
    """Builds an optimizer of Keras whose model trains by Keras' own step, if the model is built.

    Keras builds it while it traces the first step. That makes variables, so TensorFlow traces the
    step once more, which takes as long. An optimizer that copies the weights when it is built is
    left alone, and so is one of the user's, which may do so: the weights may not be those of the
    root yet.
    """
    optimizer = model.optimizer
    if optimizer is None or detect.is_model(model) or not model.built or optimizer.built:
        return
    classes = (type(optimizer), type(innermost(optimizer)))
    for kind in classes:
        if kind.__module__.partition(".")[0] != "keras" or kind.__name__ in _COPY_WEIGHTS:
            return
    if type(model).train_step is keras.Model.train_step and model.trainable_variables:
        facts.build_for(optimizer, model.trainable_variables)


def build_alike(model: Any, described: Sequence[Mapping[str, Any]]) -> None:
    """Builds the optimizers that are built on other ranks only, with the same weights.

    So all ranks have the same state to exchange. `described` is what `built_with` returned on the
    ranks, the most important rank first.
    """
    weights = facts.weights_of(model)
    for path, optimizer in optimizers_of(model).items():
        positions = next((mine[path] for mine in described if mine.get(path)), None)
        if positions and not (facts.is_built(optimizer) and facts.is_built(innermost(optimizer))):
            facts.build_for(optimizer, [weights[p] for p in positions])


def _keys(variables: Iterable[Any]) -> set[Any]:
    return {variable_key(variable) for variable in variables}


@dataclasses.dataclass(frozen=True)
class Decisions:
    """What the callbacks of a rank have decided."""

    stop: bool  # whether training stops
    rates: tuple[tuple[float, ...], ...]  # the learning rates of each optimizer of the model

    @classmethod
    def of(cls, model: Any) -> Decisions:
        """Returns the present decisions for a model."""
        rates = (map(facts.rate_of, parts) for parts in _parts(model))
        return cls(bool(model.stop_training), tuple(map(tuple, rates)))

    def apply(self, model: Any) -> None:
        """Applies them to a model."""
        model.stop_training = self.stop
        self.apply_rates(model)

    def apply_rates(self, model: Any) -> None:
        """Gives the optimizers of a model these learning rates."""
        for parts, wanted in zip(_parts(model), self.rates, strict=True):
            for part, rate in zip(parts, wanted, strict=True):
                if facts.rate_of(part) != rate:
                    part.learning_rate = rate


def _parts(model: Any) -> list[list[Any]]:
    return [list(parts_of(optimizer)) for optimizer in optimizers_of(model).values()]
