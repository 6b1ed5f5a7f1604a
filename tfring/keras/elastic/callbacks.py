"""Horovod's callbacks for elastic training by a `fit` of your own, in Keras 2 and 3."""

from __future__ import annotations

from typing import Any

import keras

from tfring.keras import detect
from tfring.keras.callbacks import running_fit
from tfring.keras.facts import Keras2Callback


class _StateCallback(Keras2Callback, keras.callbacks.Callback):  # type: ignore[misc]
    """The base class of the three; the thread that calls `fit` uses them."""

    def __init__(self, state: Any) -> None:
        """Takes the KerasState, the argument of the function that `run` calls."""
        super().__init__()
        self.state = state
        self._offset = 0  # batches of this epoch that were trained before
        self._goes_on = False  # whether the next epoch is the one that `fit` goes on with

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._goes_on = True

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._offset = getattr(self.state, "batch", 0) if self._goes_on else 0
        self._goes_on = False

    def _is_over(self, batches: int, offset: int) -> bool:
        """Returns whether these batches of this `fit`, and `offset` earlier ones, are an epoch."""
        steps = (self.params or {}).get("steps")
        return steps is not None and offset + batches >= steps


class CommitStateCallback(_StateCallback):
    """Commits the state after every `batches_per_commit`, and at the end of every epoch.

    Put it last, so that a commit holds the effects of the other callbacks. With 1 batch per commit
    no trained batch is lost, and in an elastic job the weights need not be copied (see KerasState).
    With more, the commits cost less where steps are short. In Keras 2 the last batch of an epoch is
    committed with the end of the epoch: that `fit` cannot resume an epoch without a batch left.
    """

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        """Sets when to commit; the same on every rank.

        Args:
            state: the KerasState, the argument of the function that `run` calls.
            batches_per_commit: how many batches a commit holds.

        Raises:
            ValueError: batches_per_commit is not positive.
        """
        if batches_per_commit < 1:
            raise ValueError(f"batches_per_commit is at least 1, not {batches_per_commit}")
        super().__init__(state)
        self.batches_per_commit = batches_per_commit
        self.batches_remaining = batches_per_commit
        self._seen = 0  # batches of this epoch

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        super().on_train_begin(logs)
        self.batches_remaining = self.batches_per_commit
        if hasattr(self.state, "commits_each_batch"):
            self.state.commits_each_batch(self.batches_per_commit == 1)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_begin(epoch, logs)
        self._seen = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Commits if that is due.

        Raises:
            HostsUpdatedInterrupt: ranks are about to come or go; `run` handles it.
        """
        done, self._seen = batch + 1 - self._seen, batch + 1
        self.state.mark_step(done)
        self.batches_remaining -= done
        last = detect.is_model(self.model) and self._is_over(self._seen, self._offset)
        if self.batches_remaining <= 0 and not last:
            self.commit()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Raises what on_train_batch_end does."""
        self.commit()

    def commit(self) -> None:
        """Commits the state; a subclass may do more.

        Raises:
            HostsUpdatedInterrupt: ranks are about to come or go; `run` handles it.
        """
        self.batches_remaining = self.batches_per_commit
        self.state.commit()


class _EndOfEpoch:
    """Is true, but different from the True by which another callback ends the training."""


class UpdateBatchStateCallback(_StateCallback):
    """Keeps in `state.batch` how many batches of the epoch are trained; 0 between epochs.

    An epoch that `fit` resumes ends after the batches that were left of it. Callbacks see their
    numbers begin with 0 again. The dataset decides which data these batches have: `tfring.data` has
    datasets that resume where they were.
    """

    def __init__(self, state: Any) -> None:
        """Takes a KerasState with the attribute `batch`."""
        super().__init__(state)
        self._end_of_epoch = _EndOfEpoch()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_begin(epoch, logs)
        steps = (self.params or {}).get("steps")
        self._offset = running_fit.shorten_epoch(self.model, steps, self._offset)

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Raises StopIteration if no batch of the epoch is left; Keras 3 then ends the epoch."""
        if not detect.is_model(self.model) and self._cut_short(batch):
            raise StopIteration

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.state.batch = self._offset + batch + 1
        # Keras 2 would take StopIteration for the end of all data.
        if detect.is_model(self.model) and self._cut_short(batch + 1):
            self.model.stop_training = self.model.stop_training or self._end_of_epoch

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.state.batch = 0
        if self.model.stop_training is self._end_of_epoch:
            self.model.stop_training = False

    def _cut_short(self, batches: int) -> bool:
        return self._offset > 0 and self._is_over(batches, self._offset)


class UpdateEpochStateCallback(_StateCallback):
    """Keeps in `state.epoch` how many epochs are trained.

    It understands both ways to resume: `fit(epochs=10 - state.epoch)`, which numbers epochs from 0
    again, and `fit(epochs=10, initial_epoch=state.epoch)`.
    """

    def __init__(self, state: Any) -> None:
        """Takes a KerasState with the attribute `epoch`."""
        super().__init__(state)
        self._before = 0  # epochs that were trained before this `fit`
        self._first: int | None = None  # the number that Keras gives its first epoch

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._before, self._first = self.state.epoch, None

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._first = epoch if self._first is None else self._first

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.state.epoch = self._before + epoch - (self._first or 0) + 1
