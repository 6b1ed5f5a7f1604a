"""What a callback cannot ask Keras for: the arguments of its `fit`, and the other callbacks."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import FrameType
from typing import Any

# The variable of `fit`, in Keras 3 and Keras 2, and its attribute with the steps of an epoch.
_COUNTED = {"epoch_iterator": "steps_per_epoch", "data_handler": "_inferred_steps"}
_SHORTENED = "_tfring_shortened"


def fit_frame(model: Any, frame: FrameType | None) -> FrameType | None:
    """Returns the frame of the model's `fit`, if it is this one or among its callers."""
    while frame is not None:
        if frame.f_code.co_name == "fit" and frame.f_locals.get("self") is model:
            return frame
        frame = frame.f_back
    return None


def fit_variables(model: Any) -> Mapping[str, Any]:
    """Returns the arguments and variables of the model's `fit` that calls this; {} if none does."""
    frame = fit_frame(model, inspect.currentframe())
    return {} if frame is None else frame.f_locals


def shorten_epoch(model: Any, steps: int | None, trained: int) -> int:
    """Subtracts batches that were trained before from the epoch that begins.

    Call it as each epoch begins. It changes something only where Keras counts the steps: with
    steps_per_epoch, and in Keras 2 always. There Keras would take a StopIteration for the end of
    the data: it would begin endless data anew and make all later epochs as short as this one, or
    end `fit` (Keras 2).

    Args:
        model: the model whose `fit` calls this.
        steps: of a whole epoch, if that is known.
        trained: batches of this epoch that were trained before.

    Returns:
        How many of them count: at least one step is left, if there were more steps before.
    """
    known = fit_variables(model)
    for name, attribute in _COUNTED.items():
        counts = known.get(name)
        if not steps or not getattr(counts, attribute, None):
            continue
        # A Sequence of Keras 2 may have other lengths later, so only what was shortened is set.
        if trained or known.get("steps_per_epoch") or getattr(counts, _SHORTENED, False):
            trained = min(trained, steps - 1)
            setattr(counts, attribute, steps - trained)
            setattr(counts, _SHORTENED, trained > 0)
    return trained


def list_with(callback: Any) -> Any:
    """Returns Keras' CallbackList that calls this and has a callback; None if there is none."""
    frame = inspect.currentframe()
    while frame is not None:
        found = frame.f_locals.get("self")
        known = getattr(found, "callbacks", None)
        if isinstance(known, list) and any(each is callback for each in known):
            return found
        frame = frame.f_back
    return None
