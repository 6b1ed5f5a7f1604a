"""The base classes of callbacks, and facts about a model's fit."""

from __future__ import annotations

from typing import Any

import keras

from tfring.keras import checks
from tfring.keras.callbacks import state
from tfring.keras.callbacks.fits import Fit, find_join, fit_of
from tfring.keras.facts import Keras2Callback
from tfring.training import first_steps
from tfring.training.reduction_record import reductions


class DistributedCallback(Keras2Callback, keras.callbacks.Callback):  # type: ignore[misc]
    """The base class of all callbacks that run collectives.

    Checks that gradients are reduced, and that the ranks begin the same epochs (see fits.Fit). A
    subclass that overrides a method calls that of this class first. The thread that calls `fit`
    uses it, for one `fit` at a time.
    """

    def __init__(self) -> None:
        super().__init__()
        self._fit: Fit | None = None

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        self._fit = None
        checks.before_train_function(model)

    def set_params(self, params: Any) -> None:
        """Keeps the Fit; Keras calls this before any on_train_begin."""
        super().set_params(params)
        if self.model is not None:
            self._fit = fit_of(self.model, params)

    @property
    def fit(self) -> Fit:
        """The `fit` that is under way."""
        if self._fit is None:
            self._fit = fit_of(self.model, self.params)
        return self._fit

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        reductions.forget_tapes()
        if not self.fit.reduced_by_user:
            checks.at_train_begin(self.model)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.fit.begin_epoch(self.model, epoch)

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.fit.progress.begin_batch()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.fit.end_batch(self.model, batch, logs)

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Ends the epoch: within `fit`, validation comes next."""
        self.fit.progress.end_epoch(self.model)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.fit.look_at_loss(logs)
        self.fit.end_epoch(self.model)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self.fit.end(self.model)


class LocalVariablesCallback(DistributedCallback):
    """The base class of callbacks that leave out this rank's own variables."""

    def __init__(self, local_variables: Any = None) -> None:
        """Sets what to leave out.

        Args:
            local_variables: a variable of the model, several, or None. Local variables that the
                model's optimizers know (register_local_var, local_layers) are always left out.
        """
        super().__init__()
        self._local = state.as_list(local_variables)

    def register_local_var(self, var: Any) -> None:
        """Leaves out one more variable: a keras.Variable or tf.Variable; call it before `fit`."""
        self._local.append(var)

    def local(self) -> list[Any]:
        """Returns all variables to be left out."""
        return state.local_variables(self.model, self._local)

    def set_params(self, params: Any) -> None:
        super().set_params(params)
        first_steps.leave_out(self._local)
        if self._fit is not None:
            self._fit.local += self._local


def wait_for_all(model: Any) -> None:
    """Waits until all ranks have finished their epoch, if the model's fit has a JoinCallback.

    Every callback calls this before a collective at the end of an epoch: ranks may have different
    numbers of batches, and the JoinCallback may be anywhere in the list.
    """
    join = find_join(model)
    if join is not None:
        join.join_once()
