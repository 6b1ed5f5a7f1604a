"""What a checkpoint keeps of each rank: random states, metrics of the epoch, the data cursor."""

from __future__ import annotations

import base64
import logging
import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.random import seed_generator
from tensorflow.python.ops import stateful_random_ops

from tfring.checkpoint.arrays import dtype_name
from tfring.checkpoint.manifest import as_json
from tfring.keras import metric_states
from tfring.runtime import topology

_log = logging.getLogger("tfring")
_SEED = "seed_generator_state"


class RankState:
    """This rank's random states, its metrics of the epoch, its data cursor.

    Attributes:
        metrics: the metrics of the epoch that `give_back` has found.
    """

    def __init__(self, model: Any, cursor: Any, *, within_epoch: bool = False) -> None:
        self._model, self._cursor, self._within_epoch = model, cursor, within_epoch
        self.metrics: EpochMetrics | None = None

    def as_json(self) -> dict[str, Any]:
        """Returns it for a checkpoint."""
        cursor = self._cursor
        state = None if cursor is None else as_json(cursor.state_dict(), "the state of the cursor")
        metrics = EpochMetrics.of(self._model).as_json() if self._within_epoch else None
        return {"random": random_states(self._model), "cursor": state, "metrics": metrics}

    def give_back(self, ranks: Sequence[Mapping[str, Any]]) -> None:
        """Restores this rank, from the states of all ranks: a cursor may count for all."""
        rank, size = topology.rank(), topology.size()
        if len(ranks) != size and rank == 0:
            _log.warning(_other_ranks(len(ranks), size, ranks[0]["metrics"] is not None))
        if rank < len(ranks):
            anew = set_random_states(self._model, ranks[rank]["random"])
            if anew:
                _log.warning("rank %d: the checkpoint does not fit %s", rank, ", ".join(anew))
        if len(ranks) == size and ranks[rank]["metrics"] is not None:
            self.metrics = EpochMetrics.of_json(ranks[rank]["metrics"])
        if self._cursor is not None:
            _load_cursor(self._cursor, [each["cursor"] for each in ranks])


def _other_ranks(saved: int, now: int, within_epoch: bool) -> str:
    more = f"ranks from {saved} on go on with other seeds"
    fewer = f"those of ranks from {now} on are not used"
    rest = ", and the metrics of this epoch are those of its rest" if within_epoch else ""
    return (
        f"the checkpoint has random states of {saved} ranks, and there are {now} now: "
        f"{more if now > saved else fewer}{rest}"
    )


def _load_cursor(cursor: Any, states: Sequence[Any]) -> None:
    rank, size = topology.rank(), topology.size()
    if all(state is None for state in states):
        warnings.warn("the checkpoint has no data cursor: the data begins anew", stacklevel=3)
    elif len(states) == size:
        cursor.load_state_dict(states[rank])
    elif all(state == states[0] for state in states):
        cursor.load_state_dict(states[0])
    else:
        raise RuntimeError(
            f"rank {rank}: the checkpoint has a different data cursor for each of {len(states)} "
            f"ranks, and there are {size} now.\nStart {len(states)} ranks, or use a cursor that "
            "counts the samples of all ranks."
        )


def random_states(model: Any) -> dict[str, Any]:
    """Returns the states of this rank's random generators, as values of JSON.

    These are the generators of Python, of numpy's functions, of `tf.random.get_global_generator()`
    and of keras.random if they were used, and the seed generators of the model.
    """
    version, words, gauss = random.getstate()
    found = {
        "python": [version, _packed(np.array(words, np.uint32)), gauss],
        "seeds": [variable.numpy().tolist() for variable in _seed_generators(model)],
    }
    numpy_state: Any = np.random.get_state()
    if numpy_state[0] == "MT19937":
        _, keys, *rest = numpy_state
        found["numpy"] = [_packed(keys), *rest]
    generator = stateful_random_ops.global_generator
    if generator is not None:
        found["tensorflow"] = [generator.state.numpy().tolist(), int(generator.algorithm)]
    keras_generator = global_state.get_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR)
    if keras_generator is not None:
        found["keras"] = keras_generator.state.numpy().tolist()
    return found


def set_random_states(model: Any, saved: Mapping[str, Any]) -> list[str]:
    """Restores the generators; returns those without a saved state, which keep their seeds."""
    anew = []
    setters: dict[str, Callable[[Any], None]] = {
        "keras": _set_keras,  # first: Keras draws the seed of a new generator from Python's
        "tensorflow": _set_tensorflow,
        "numpy": _set_numpy,
        "python": _set_python,
    }
    for name, give in setters.items():
        if name in saved:
            give(saved[name])
    variables, seeds = _seed_generators(model), saved["seeds"]
    if [tuple(v.shape) for v in variables] == [np.shape(seed) for seed in seeds]:
        for variable, seed in zip(variables, seeds, strict=True):
            variable.assign(np.array(seed, variable.numpy().dtype))
    elif len(variables):
        anew.append(f"{len(variables)} seed generators of the model ({len(seeds)} were saved)")
    return anew


def _seed_generators(model: Any) -> list[Any]:
    return [v for v in model.variables if v.name.split("/")[-1] == _SEED]


def _packed(words: Any) -> str:
    return base64.b64encode(words.astype("<u4").tobytes()).decode()


def _unpacked(text: str) -> Any:
    return np.frombuffer(base64.b64decode(text), "<u4")


def _set_python(state: Sequence[Any]) -> None:
    version, words, gauss = state
    random.setstate((version, tuple(_unpacked(words).tolist()), gauss))


def _set_numpy(state: Sequence[Any]) -> None:
    keys, position, has_gauss, gauss = state
    np.random.set_state(("MT19937", _unpacked(keys), position, has_gauss, gauss))


def _set_tensorflow(state: Sequence[Any]) -> None:
    values, algorithm = state
    generator = stateful_random_ops.global_generator
    if generator is None or int(generator.algorithm) != algorithm:
        made = tf.random.Generator.from_state(np.array(values, np.int64), algorithm)
        tf.random.set_global_generator(made)
    else:
        generator.state.assign(np.array(values, np.int64))


def _set_keras(state: Sequence[int]) -> None:
    variable = seed_generator.global_seed_generator().state
    variable.assign(np.array(state, variable.numpy().dtype))


class EpochMetrics:
    """The states of a rank's metrics after some batches of an epoch.

    Keras sets them to zero when the epoch begins, and makes most of them in the first step that a
    process trains. So they are restored before that step if they exist, and else added to what the
    metrics hold after it.
    """

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = list(values)

    @classmethod
    def of(cls, model: Any) -> EpochMetrics:
        """Returns the present states of a model's metrics."""
        return cls([variable.numpy() for variable in _variables(model)])

    def as_json(self) -> list[Any]:
        """Returns them as JSON for a checkpoint."""
        return [
            [dtype_name(value), list(value.shape), base64.b64encode(value.tobytes()).decode()]
            for value in map(np.asarray, self._values)
        ]

    @classmethod
    def of_json(cls, saved: Sequence[Any]) -> EpochMetrics:
        """Returns the object whose `as_json` was saved."""
        return cls(
            [
                np.frombuffer(base64.b64decode(data), np.dtype(dtype)).reshape(shape)
                for dtype, shape, data in saved
            ]
        )

    def give_back(self, model: Any) -> bool:
        """Restores the metrics; returns whether the model has these metrics."""
        variables = _variables(model)
        if not self._fits(variables):
            return False
        for variable, value in zip(variables, self._values, strict=True):
            variable.assign(value)
        return True

    def add_to(self, model: Any) -> bool:
        """Adds them to the metrics after the first step, but for metrics that do not add up."""
        variables = _variables(model)
        if not self._fits(variables):
            return False
        adds = {id(v) for v in metric_states.states_of(model).variables}
        for variable, value in zip(variables, self._values, strict=True):
            if id(variable) in adds:
                variable.assign(variable.numpy() + value)
        return True

    def _fits(self, variables: Sequence[Any]) -> bool:
        shapes = [tuple(variable.shape) for variable in variables]
        return shapes == [np.shape(value) for value in self._values]


def _variables(model: Any) -> list[Any]:
    return [variable for metric in model.metrics for variable in metric.variables]
