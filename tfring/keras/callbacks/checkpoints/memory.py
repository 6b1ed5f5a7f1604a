"""The states of callbacks: a checkpoint keeps them, and they are restored when training resumes.

Of Keras' own callbacks these are a few attributes. Others have `state_dict()` and
`load_state_dict(state)`, as data cursors do. A callback is recognised by its class, by the metric
that it monitors, and by its place among callbacks that are alike in this.
"""

from __future__ import annotations

import collections
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from tfring.checkpoint import CheckpointError
from tfring.checkpoint.arrays import dtype_name
from tfring.checkpoint.manifest import as_json
from tfring.runtime.exceptions import described

PART = "tfring/callbacks"  # of a checkpoint; arrays are below it

# By class, in both Keras: what is kept of it. All else follows from its arguments.
_OF_KERAS = {
    "EarlyStopping": ("wait", "stopped_epoch", "best", "best_epoch", "best_weights"),
    "ReduceLROnPlateau": ("wait", "best", "cooldown_counter"),
    "ModelCheckpoint": (
        "best",
        "epochs_since_last_save",
        "_batches_seen_since_last_saving",
        "_last_batch_seen",
    ),
    "SwapEMAWeights": ("_ema_weights_in_model",),
    "TensorBoard": ("_global_train_batch", "_global_test_batch"),
    "History": ("epoch", "history"),
}
_LIBRARIES = ("keras", "tf_keras", "tfring")
_PLAIN = {*vars(keras.callbacks.Callback()), "model", "params"}  # what every callback has


class Memory:
    """The states of callbacks when a checkpoint was made.

    Attributes:
        states: by place ("EarlyStopping(val_loss)/0") and name: {"value": ...} as JSON has it,
            {"array": True}, or {"arrays": their number}.
        arrays: by the names that they have in a checkpoint.
    """

    def __init__(
        self,
        states: Mapping[str, Mapping[str, Any]] | None = None,
        arrays: Mapping[str, Any] | None = None,
    ) -> None:
        self.states, self.arrays = dict(states or {}), dict(arrays or {})

    @classmethod
    def of(cls, callbacks: Sequence[Any]) -> Memory:
        """Returns the present states of callbacks.

        Raises:
            CheckpointError: a `state_dict` returns what JSON cannot hold, and no arrays.
        """
        memory = cls()
        for place, callback in _places(callbacks):
            if _remembers(callback):
                memory.states[place] = {
                    key: _taken_out(f"{PART}/{place}/{key}", value, memory.arrays)
                    for key, value in _state_of(place, callback).items()
                }
        return memory

    def give_back(self, callbacks: Sequence[Any]) -> list[str]:
        """Restores the callbacks; returns the places of those that begin anew.

        Call it after their `on_train_begin`, in which those of Keras begin anew.

        Raises:
            CheckpointError: a `load_state_dict` fails.
        """
        anew = []
        for place, callback in _places(callbacks):
            if _remembers(callback) and place in self.states:
                state = {
                    key: _put_back(f"{PART}/{place}/{key}", value, self.arrays)
                    for key, value in self.states[place].items()
                }
                _give_back(place, callback, state)
            elif _remembers(callback) or _may_remember(callback):
                anew.append(place)
        return anew

    def parts(self) -> dict[str, Any]:
        """Returns it as parts of a checkpoint."""
        return {PART: json.dumps(self.states).encode(), **self.arrays}

    @classmethod
    def of_parts(cls, parts: Mapping[str, Any]) -> Memory:
        """Returns the object whose `parts` were saved."""
        arrays = {name: value for name, value in parts.items() if name.startswith(f"{PART}/")}
        return cls(json.loads(parts.get(PART, b"{}")), arrays)

    def described(self) -> list[Any]:
        """Returns as JSON the states, and dtype and shape of the arrays."""
        kinds = {name: [dtype_name(each), each.shape] for name, each in self.arrays.items()}
        return [self.states, kinds]


def has_ended(model: Any, callbacks: Sequence[Any]) -> bool:
    """Returns whether a callback has ended training for good, as EarlyStopping does.

    Others end a `fit` only, as at a limit of time: a program that is started again trains on.
    """
    ended = any(getattr(callback, "stopped_epoch", 0) for callback in callbacks)
    return ended and bool(model.stop_training)


def _places(callbacks: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    counts: collections.Counter[str] = collections.Counter()
    for callback in callbacks:
        name = type(callback).__name__
        monitor = getattr(callback, "monitor", None)  # the best value of another metric is no use
        name += f"({monitor})" if isinstance(monitor, str) else ""
        yield f"{name}/{counts[name]}", callback
        counts[name] += 1


def _remembers(callback: Any) -> bool:
    return _has_own_state(callback) or bool(_attributes(callback))


def _has_own_state(callback: Any) -> bool:
    return hasattr(callback, "state_dict") and hasattr(callback, "load_state_dict")


def _attributes(callback: Any) -> list[str]:
    """Returns the names of the kept attributes of a callback of Keras, or of a subclass."""
    for kind in type(callback).__mro__:
        if kind.__module__.split(".")[0] in _LIBRARIES and kind.__name__ in _OF_KERAS:
            return [name for name in _OF_KERAS[kind.__name__] if hasattr(callback, name)]
    return []


def _may_remember(callback: Any) -> bool:
    """Returns whether a callback of the user's has attributes of its own."""
    foreign = type(callback).__module__.split(".")[0] not in _LIBRARIES
    return foreign and not vars(callback).keys() <= _PLAIN


def _state_of(place: str, callback: Any) -> dict[str, Any]:
    if _has_own_state(callback):
        what = f"state_dict() of the callback {place}"
        try:
            given = dict(callback.state_dict())
        except Exception as error:
            raise CheckpointError(f"{what} fails or returns no dict: {described(error)}") from error
        return {key: _kept(value, what) for key, value in given.items()}
    state = {}
    for name in _attributes(callback):
        try:
            state[name] = _kept(getattr(callback, name), f"{name} of {place}")
        except CheckpointError as error:  # what the program has put into the logs, say
            warnings.warn(f"tfring: not in the checkpoints: {error}", stacklevel=3)
    return state


def _kept(value: Any, what: str) -> Any:
    """Returns a value as it is kept: arrays as they are, all else as JSON has it."""
    if isinstance(value, np.ndarray) or _is_list_of_arrays(value):
        return value
    return as_json(_plain(value), what)


def _is_list_of_arrays(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, np.ndarray) for v in value)


def _plain(value: Any) -> Any:
    """Returns numbers of numpy and TensorFlow as those of Python."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if hasattr(value, "numpy"):
        value = value.numpy()
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def _taken_out(name: str, value: Any, arrays: dict[str, Any]) -> dict[str, Any]:
    """Returns a value for JSON, and puts arrays elsewhere."""
    if isinstance(value, np.ndarray):
        arrays[name] = value
        return {"array": True}
    if _is_list_of_arrays(value):
        arrays.update({f"{name}/{i}": each for i, each in enumerate(value)})
        return {"arrays": len(value)}
    return {"value": value}


def _put_back(name: str, described: Mapping[str, Any], arrays: Mapping[str, Any]) -> Any:
    if "array" in described:
        return arrays[name]
    if "arrays" in described:
        return [arrays[f"{name}/{i}"] for i in range(described["arrays"])]
    return described["value"]


def _give_back(place: str, callback: Any, state: Mapping[str, Any]) -> None:
    if _has_own_state(callback):
        try:
            callback.load_state_dict(dict(state))
        except Exception as error:
            raise CheckpointError(
                f"load_state_dict() of the callback {place} fails: {described(error)}. The "
                f"checkpoint has {', '.join(state)} of it. Take these, or give the class another "
                "name to begin anew"
            ) from error
        return
    for name in _attributes(callback):
        if name in state:
            setattr(callback, name, state[name])
