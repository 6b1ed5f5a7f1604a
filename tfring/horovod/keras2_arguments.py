"""Arguments that Keras 2 has and Keras 3 does not, and how the shim handles each."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import keras

from tfring.integration import warn_program

USE_KERAS_2 = "set TF_USE_LEGACY_KERAS=1 and install tf_keras to run this script with Keras 2"

# Changes keyword arguments: gets the call, the name of a given argument, and all arguments.
_Rule = Callable[[str, str, dict[str, Any]], None]

_warned: set[str] = set()


def warn_once(what: str, instead: str) -> None:
    """Warns of an idiom, once per process."""
    if what not in _warned:
        _warned.add(what)
        warn_program(f"{what} is Keras 2 syntax: {instead}")


def accepting(function: Any, call: str) -> Any:
    """Returns a method that takes the arguments of Keras 2 and calls the method of Keras 3.

    Args:
        function: the method of Keras 3.
        call: its name in messages; the table below has its arguments.
    """
    rules = _ARGUMENTS[call]

    @functools.wraps(function)
    def accept(self: Any, *args: Any, **kwargs: Any) -> Any:
        for name, rule in rules.items():
            if name in kwargs:
                rule(call, name, kwargs)
        return function(self, *args, **kwargs)

    # Keras reads the parameters of a layer's __init__, but not through a wrapper.
    vars(accept)["__signature__"] = inspect.signature(function)
    return accept


def _left_out(why: str) -> _Rule:
    def change(call: str, name: str, kwargs: dict[str, Any]) -> None:
        warn_once(f"{call}({name}=...)", f"{name} {why}")
        del kwargs[name]

    return change


def _renamed(new: str) -> _Rule:
    def change(call: str, name: str, kwargs: dict[str, Any]) -> None:
        warn_once(f"{call}({name}=...)", f"write {new}=")
        kwargs[new] = kwargs.pop(name)

    return change


def _refused(call: str, name: str, kwargs: dict[str, Any]) -> None:
    if kwargs.pop(name):
        raise TypeError(f"{call}({name}=...) exists in Keras 2 only, not in Keras 3: {USE_KERAS_2}")


def _decay(call: str, name: str, kwargs: dict[str, Any]) -> None:
    """Makes it the schedule with the same learning rates, unless it is 0."""
    decay = kwargs.pop(name)
    if not decay:
        return
    schedule = "keras.optimizers.schedules.InverseTimeDecay"
    warn_once(f"{call}({name}=...)", f"write learning_rate={schedule}(rate, 1, decay)")
    rate = kwargs.pop("lr", kwargs.get("learning_rate"))
    try:
        rate = float(rate)
    except (TypeError, ValueError):
        raise TypeError(
            f"{call}({name}={decay}) with learning_rate={rate!r}: Keras 3 has no decay of a "
            f"schedule. Give a number as learning_rate=, or {USE_KERAS_2}"
        ) from None
    kwargs["learning_rate"] = keras.optimizers.schedules.InverseTimeDecay(rate, 1, decay)


_QUEUE = "has no effect in Keras 3: give it to the keras.utils.PyDataset that makes the batches"
_REDUCED = "has no effect: a wrapped optimizer reduces gradients that were not reduced. Leave it "
"out"

_ARGUMENTS: dict[str, dict[str, _Rule]] = {
    "compile": {
        "experimental_run_tf_function": _left_out(
            "has had no effect since TensorFlow 2.2: leave it out"
        ),
        "experimental_steps_per_execution": _renamed("steps_per_execution"),
        **dict.fromkeys(
            ("distribute", "options", "run_metadata", "sample_weight_mode", "target_tensors"),
            _refused,
        ),
    },
    **{
        method: dict.fromkeys(
            ("workers", "use_multiprocessing", "max_queue_size"), _left_out(_QUEUE)
        )
        for method in ("fit", "evaluate", "predict")
    },
    "optimizer": {
        "decay": _decay,
        "lr": _renamed("learning_rate"),
        "gradient_aggregator": _refused,
        "gradient_transformers": _refused,
    },
    "apply_gradients": {
        "experimental_aggregate_gradients": _left_out(_REDUCED),
        "skip_gradients_aggregation": _left_out(_REDUCED),
        "name": _left_out("has no effect: leave it out"),
    },
    "BatchNormalization": {"fused": _left_out("has no effect: Keras 3 chooses the kernel itself")},
}
