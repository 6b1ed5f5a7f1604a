"""What the callbacks share: the check that gradients are reduced, and facts about a model's fit."""

from __future__ import annotations

import weakref
from typing import Any

import keras

from tfring.keras import checks
from tfring.keras2.facts import Keras2Callback

# By model: the JoinCallback of its fit, and the last epoch whose metrics have been averaged.
_joins: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = weakref.WeakKeyDictionary()
_averaged: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


class DistributedCallback(Keras2Callback, keras.callbacks.Callback):  # type: ignore[misc]
    """The base class of all callbacks that run collectives; checks that gradients are reduced.

    Used by the thread that calls `fit`, and for one `fit` at a time.
    """

    def __init__(self) -> None:
        super().__init__()
        self._watch: checks.ReductionWatch | None = None

    def set_model(self, model: Any) -> None:
        """As in keras.callbacks.Callback."""
        super().set_model(model)
        checks.before_train_function(model)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """As in keras.callbacks.Callback."""
        checks.at_train_begin(self.model)
        self._watch = checks.ReductionWatch(self.model)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """As in keras.callbacks.Callback."""
        if self._watch is not None:
            self._watch.after_first_batch()
            self._watch = None


def register_join(model: Any, callback: Any) -> None:
    """Makes `callback` the JoinCallback of the model's fit; None for the end of it."""
    if callback is None:
        _joins.pop(model, None)
    else:
        _joins[model] = weakref.ref(callback)


def find_join(model: Any) -> Any:
    """Returns the JoinCallback of the model's fit, or None."""
    reference = _joins.get(model)
    return None if reference is None else reference()


def wait_for_all(model: Any) -> None:
    """Waits until all ranks have finished their epoch, if the model's fit has a JoinCallback.

    Every callback calls this before a collective at the end of an epoch: ranks may have different
    numbers of batches, and the JoinCallback may be anywhere in the list of callbacks.
    """
    join = find_join(model)
    if join is not None:
        join.join_once()


def set_averaged(model: Any, epoch: int) -> None:
    """Records that the metrics of this epoch are means over the ranks."""
    _averaged[model] = epoch


def is_averaged(model: Any, epoch: int) -> bool:
    """Returns whether the metrics of this epoch are means over the ranks already."""
    return _averaged.get(model) == epoch
