"""What a callback cannot ask Keras for: the other callbacks of its `fit`, and the data."""

from __future__ import annotations

import inspect
from typing import Any

from tfring.keras.callbacks.fits import fit_frame

# The variable of `fit`, in Keras 3 and Keras 2, and what it has the steps of an epoch in.
_COUNTED = {"epoch_iterator": "steps_per_epoch", "data_handler": "_inferred_steps"}
_SHORTENED = "_tfring_shortened"


def data_of(model: Any) -> Any:
    """Returns what the `fit` of a model that calls this trains with; None if nobody knows."""
    frame = fit_frame(model, inspect.currentframe())
    return None if frame is None else frame.f_locals.get("x")


def shorten_epoch(model: Any, steps: int | None, trained: int) -> int:
    """Takes what was trained before off the epoch that begins, where Keras counts its steps.

    It does with steps_per_epoch, and Keras 2 always. It would take a StopIteration for the end of
    the data: it would begin endless data anew and make all later epochs as short as this one, or
    end `fit` (Keras 2). Call it as each epoch begins.

    Args:
        model: the model whose `fit` calls this.
        steps: of a whole epoch, if that is known.
        trained: batches of this epoch that were trained before.

    Returns:
        How many of them count: at least one step is left, if there were more steps before.
    """
    frame = fit_frame(model, inspect.currentframe())
    known = {} if frame is None else frame.f_locals
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
