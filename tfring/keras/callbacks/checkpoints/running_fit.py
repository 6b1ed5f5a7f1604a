"""What a callback cannot ask Keras for: the other callbacks of its `fit`, and the data."""

from __future__ import annotations

import inspect
from typing import Any

from tfring.keras.callbacks.fits import fit_frame


def data_of(model: Any) -> Any:
    """Returns what the `fit` of a model that calls this trains with; None if nobody knows."""
    frame = fit_frame(model, inspect.currentframe())
    return None if frame is None else frame.f_locals.get("x")


def shorten_epoch(model: Any, steps: int | None, trained: int) -> int:
    """Takes what was trained before off the epoch that begins, if `fit` has steps_per_epoch.

    Keras would take a StopIteration for the end of the data: it would begin endless data anew, and
    make all later epochs as short as this one. Call it as each epoch begins.

    Args:
        model: the model whose `fit` calls this.
        steps: of a whole epoch, if that is known.
        trained: batches of this epoch that were trained before.

    Returns:
        How many of them count: at least one step is left, if steps_per_epoch was larger before.
    """
    frame = fit_frame(model, inspect.currentframe())
    iterator: Any = None if frame is None else frame.f_locals.get("epoch_iterator")
    if steps and getattr(iterator, "steps_per_epoch", None):
        trained = min(trained, steps - 1)
        iterator.steps_per_epoch = steps - trained
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
