"""UserCallbacks: the user's callbacks of an elastic `fit`, which see one training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras

from tfring.keras.callbacks.decisions import Decisions


class UserCallbacks(keras.callbacks.Callback):  # type: ignore[misc]
    """Passes on the calls of Keras, as if training were never interrupted.

    A generation of the job is one `fit` of Keras. The user's callbacks see one beginning and one
    end of the training, each epoch once under its true number, and the batches of a resumed epoch
    under their true numbers. The thread that calls `fit` uses it.
    """

    def __init__(
        self, callbacks: Sequence[Any], state: Any, begun: Callable[[], None] = lambda: None
    ) -> None:
        """Takes the user's callbacks, the FitState, and a function to call when they have begun."""
        super().__init__()
        self._callbacks, self._state, self._tell_begun = list(callbacks), state, begun
        self.all: Any = None  # a CallbackList of them, once training has begun
        self._begun = self._ended = -1  # the last epoch of which they have seen this
        self._decided: Decisions | None = None  # at the end of that epoch
        self._finished = False
        self._offset = 0  # batches of this epoch that were trained before

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self.all is not None:
            return
        self.all = keras.callbacks.CallbackList(
            self._callbacks, add_history=False, add_progbar=False, model=self.model, **self.params
        )
        self.all.on_train_begin(logs)
        self._tell_begun()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._offset = self._state.batch
        if epoch > self._begun:
            self._begun = epoch
            before = Decisions.of(self.model)
            self.all.on_epoch_begin(epoch, logs)
            if self._offset:  # the rates of the checkpoint had this epoch's changes already
                before.apply_rates(self.model)

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.all.on_train_batch_begin(self._offset + batch, logs)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.all.on_train_batch_end(self._offset + batch, logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Ends an epoch once.

        If a rank is lost before the end of the epoch is committed, the epoch ends again. The
        earlier decisions of the callbacks then hold; they are not called again.
        """
        if epoch <= self._ended:
            if self._decided is not None:
                self._decided.apply(self.model)
            return
        self._ended = epoch
        try:
            for callback in self.all.callbacks:  # the list would give them a copy of the logs
                callback.on_epoch_end(epoch, logs)
        finally:
            self._decided = Decisions.of(self.model)

    def finish(self, logs: dict[str, Any] | None) -> None:
        """Ends training, on all ranks; once."""
        if self.all is not None and not self._finished:
            self._finished = True
            self.all.on_train_end(logs)
