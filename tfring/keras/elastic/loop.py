"""The callbacks by which elastic `fit` commits steps and epochs, around the user's."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from tfring.collectives import objects
from tfring.elastic import process as processes
from tfring.elastic.errors import HostsUpdatedInterrupt
from tfring.elastic.messages import NO_UPDATE, REMOVED, strongest
from tfring.keras.callbacks.checkpoints.boundary import UpdateBoundary
from tfring.keras.callbacks.checkpoints.rank_state import EpochMetrics
from tfring.keras.callbacks.cursor import CursorCallback
from tfring.keras.callbacks.state import Decisions
from tfring.keras.elastic.fit_state import FitCheckpoints, FitState
from tfring.keras.evaluation import evaluate
from tfring.runtime import topology
from tfring.runtime.settings.environment import read_settings


class CommitSteps(CursorCallback):
    """The first callback: commits a step before anything else can fail, and ends epochs in time."""

    def __init__(self, state: FitState, batches_per_commit: int) -> None:
        """Raises ValueError if batches_per_commit is not positive."""
        if batches_per_commit < 1:
            raise ValueError(f"batches_per_commit is at least 1, not {batches_per_commit}")
        super().__init__(state.data)
        self._state, self._every = state, batches_per_commit
        self._since = 0  # batches that are not committed
        self._metrics: EpochMetrics | None = None
        self.committed = False  # in the last batch
        state.commits_each_batch(batches_per_commit == 1)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._since = 0

    def keep_metrics(self, metrics: EpochMetrics | None) -> None:
        """Keeps the metrics of the epoch that is resumed, which Keras resets."""
        self._metrics = metrics

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_begin(epoch, logs)
        if self._metrics is not None and self._metrics.give_back(self.model):
            self._metrics = None

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Raises StopIteration if no batch of this epoch is left; Keras then ends the epoch."""
        if self._state.data.epoch > self._state.epoch:
            raise StopIteration
        super().on_train_batch_begin(batch, logs)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        done = batch + 1 - self._batches
        super().on_train_batch_end(batch, logs)
        if self._metrics is not None:
            self._metrics.add_to(self.model)
            self._metrics = None
        self._state.add_steps(done)
        self._since += done
        self.committed = self._since >= self._every
        if self.committed:
            self._since = 0
            self._state.commit_here()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if not logs and logs is not None:  # all batches were trained before a failure
            results = self.model.get_metrics_result()
            logs.update({name: np.asarray(value).tolist() for name, value in results.items()})


class Validate(keras.callbacks.Callback):  # type: ignore[misc]
    """Adds the metrics of the validation data.

    Each rank evaluates a part of a tuple of arrays, or all of anything else that `model.evaluate`
    takes.
    """

    def __init__(self, data: Any, batch_size: int | None, users: UserCallbacks) -> None:
        super().__init__()
        self._data, self._batch_size, self._users = data, batch_size, users

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        x, y, weights = self._data, None, None
        batch_size = None
        if isinstance(self._data, (tuple, list)):
            x, y, weights = (*map(_own_part, self._data), None, None)[:3]
            batch_size = self._batch_size
        results = evaluate(
            self.model,
            x,
            y,
            sample_weight=weights,
            batch_size=batch_size,
            callbacks=self._users.all,
        )
        if logs is not None:
            logs.update({f"val_{name}": value for name, value in results.items()})


class CommitEpochs(keras.callbacks.Callback):  # type: ignore[misc]
    """The last callback: commits the end of an epoch, and lets ranks come and go."""

    def __init__(
        self,
        state: FitState,
        steps: CommitSteps,
        checkpoints: FitCheckpoints | None,
        wants_to_leave: Callable[[], bool],
    ) -> None:
        super().__init__()
        self._state, self._steps, self._checkpoints = state, steps, checkpoints
        self._wants_to_leave = wants_to_leave
        self._told = False  # the coordinator, that we want to leave
        self._boundary = UpdateBoundary()
        self._due = False  # at the end of an epoch
        self._logs: Mapping[str, Any] | None = None  # of that epoch

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Commits, because the user's callbacks are called only once."""
        self._state.commit_here()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Saves and lets ranks come and go, after a commit.

        Raises:
            HostsUpdatedInterrupt: ranks are about to come or go; `run` handles it.
            SystemExit: all ranks were asked to end, and have saved.
        """
        if self._checkpoints is not None:
            self._checkpoints.look_at_loss(self.model, logs)
        if self._steps.committed:
            self._let_change(may_save=not self._state.data.cursor.pass_is_done)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Raises what on_train_batch_end does."""
        state = self._state
        self._agree()
        state.epochs = state.epochs.added(epoch, logs or {})
        state.epoch, state.batch, state.stopped = epoch + 1, 0, bool(self.model.stop_training)
        state.commit_here()
        last = state.stopped or state.epoch == (self.params or {}).get("epochs")
        if self._checkpoints is not None:
            self._due |= last or self._checkpoints.due_at_epoch(state.epoch)
            self._logs = logs if self._due else None
        self._let_change(may_save=True, final=last)

    def _agree(self) -> None:
        """Takes the decisions of rank 0's callbacks.

        Callbacks of ranks that have joined later do not know the epochs before.
        """
        if topology.size() == 1:
            return
        mine = Decisions.of(self.model)
        [stop, rates], *_ = objects.allgather_json([mine.stop, mine.rates], "tfring.elastic.fit")
        Decisions(stop, tuple(map(tuple, rates))).apply(self.model)

    def _let_change(self, *, may_save: bool, final: bool = False) -> None:
        """Saves if that is due, and lets ranks come and go, if no accumulated gradient is lost.

        After the last batch of an epoch it may not save: the end of the epoch comes next. `final`
        says that there is no later commit to do it at.
        """
        if not self._boundary.is_here(self.model, final=final):
            return
        leaves, process = self._wants_to_leave(), processes.present()
        state, checkpoints = self._state, self._checkpoints
        if leaves and process is not None and not self._told:
            self._told = True
            # The coordinator then lets all come to the same commit; without one all end together.
            process.link.leave()
        alone = process is None or process.link.silent
        late = checkpoints is not None and checkpoints.due_by_time()
        update, stop, save = state.ask(leaves and alone, late or self._due)
        changes = update != NO_UPDATE or stop
        if checkpoints is not None:
            save |= checkpoints.due_at_step(state.trained, state.saved)
            all_end = changes and strongest(int(not leaves and not stop)) == 0
            if changes or (save and may_save):
                last = final or all_end
                checkpoints.save_state(
                    state, self._logs, at_change=changes, leaves=leaves, last=last
                )
                self._due, self._logs = False, None
            # Where nobody stays who has the state, all wait until it is published.
            if all_end:
                checkpoints.publish()
            elif changes and leaves:
                checkpoints.leave()
        if not changes:
            return
        if stop:
            raise SystemExit(read_settings(os.environ).stopped_exit_code)
        raise HostsUpdatedInterrupt(update == REMOVED)


def _own_part(data: Any) -> Any:
    """Returns this rank's samples of arrays; all if there are fewer samples than ranks."""

    def cut(array: Any) -> Any:
        few = len(array) < topology.size()
        return array if few else array[topology.rank() :: topology.size()]

    return None if data is None else keras.tree.map_structure(cut, data)


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
        self._begun = self._ended = -1  # the last epoch whose begin or end they have seen
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

    def go_back(self, epoch: int) -> None:
        """Training has gone back to the beginning of an epoch, or to its middle."""
        self._begun = self._ended = epoch - 1
        self._decided = None

    def finish(self, logs: dict[str, Any] | None) -> None:
        """Ends training, on all ranks; once."""
        if self.all is not None and not self._finished:
            self._finished = True
            self.all.on_train_end(logs)
