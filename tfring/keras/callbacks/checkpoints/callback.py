"""CheckpointCallback: saves while fitting, goes on from what was saved, and leaves at SIGTERM."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import numpy as np

from tfring import topology
from tfring.keras.callbacks.base import LocalVariablesCallback, find_join, wait_for_all
from tfring.keras.callbacks.checkpoints.agreement import Agreement
from tfring.keras.callbacks.checkpoints.training_checkpoints import TrainingCheckpoints
from tfring.keras.callbacks.checkpoints.training_state import TrainingPosition
from tfring.keras.callbacks.fits import fit_frame
from tfring.keras.checks import refuse_to_resume
from tfring.keras2 import detect, facts
from tfring.settings.environment import read_settings
from tfring.signals.termination import TerminationRequest

_AT_SIGTERM = ("exit", "return", "ignore")


class CheckpointCallback(LocalVariablesCallback):
    """Saves the state of training, so that the same program, started again, goes on from there.

    When `fit` begins, all ranks get the newest valid checkpoint, if there is one, and `fit` goes on
    with its epoch. Where `fit` gets data of `shard` or `shard_batches`, or a `cursor` is given, it
    goes on within the epoch, as if it had never stopped. While it trains, each rank copies its
    share of the state and a thread writes it. At SIGTERM all ranks finish the same step, publish a
    checkpoint and leave.

    Comes after every callback that changes weights, the learning rate or the cursor. With a
    JoinCallback it saves and stops at the end of epochs only. What other callbacks remember is not
    kept, and those that count batches within an epoch begin with 0 where an epoch goes on.

    Attributes:
        position: where the last `fit` began, a TrainingPosition; None if it began anew.
        stopped: whether the last `fit` was ended by SIGTERM or `request_stop`.
    """

    def __init__(
        self,
        checkpoints: Any,
        *,
        every_epochs: int | None = 1,
        every_steps: int | None = None,
        every_seconds: float | None = None,
        cursor: Any = None,
        restore: bool | str = True,
        generation: int | Callable[[], int] | None = None,
        at_sigterm: str = "exit",
        values: Callable[[], Mapping[str, Any]] | None = None,
        local_variables: Any = None,
    ) -> None:
        """Sets where to and when to save; the same on every rank.

        Args:
            checkpoints: a Checkpointer, or the path or URL of its folder.
            every_epochs: saves at the end of every so many epochs; None for never.
            every_steps: saves after every so many steps of training; None for never.
            every_seconds: saves when so many seconds have passed on rank 0; None for never.
            cursor: which data comes next: an object with `state_dict()`, which returns values of
                JSON, and `load_state_dict(state)`. It has to count what was trained, not what was
                read ahead. None: that of data of `shard` or `shard_batches`; with other data an
                epoch that was interrupted begins anew.
            restore: whether `fit` goes on from the newest checkpoint. If not it begins anew, and
                what it saves wins over what is there. "required": no checkpoint is an error.
            generation: which generation of the job saves, or a function that returns it; None is
                a new one, which is reserved when `fit` begins.
            at_sigterm: "exit" publishes a checkpoint and raises SystemExit within `fit`, with
                TFRING_STOPPED_EXIT_CODE (75); "return" publishes, too, and lets `fit` return;
                "ignore" leaves the signal alone.
            values: returns more to keep: values that JSON can hold. Those of rank 0 count.
            local_variables: variables of the model that are this rank's own; they are not saved.

        Raises:
            ValueError: a number that is not positive, or another word for restore or at_sigterm.
        """
        super().__init__(local_variables)
        if at_sigterm not in _AT_SIGTERM:
            raise ValueError(
                f"CheckpointCallback: at_sigterm={at_sigterm!r} is none of {', '.join(_AT_SIGTERM)}"
            )
        self._checkpoints = TrainingCheckpoints(
            checkpoints,
            every_epochs=every_epochs,
            every_steps=every_steps,
            every_seconds=every_seconds,
            restore=restore,
        )
        self._cursor, self._values = cursor, values
        self._wanted_generation, self._at_sigterm = generation, at_sigterm
        self._agreement = Agreement()
        self._termination = TerminationRequest(self._fits)
        self.position: TrainingPosition | None = None
        self.stopped = False
        self._step = self._saved = 0  # steps of training: done, in the last checkpoint
        self._epoch = self._batch = 0  # batches of this epoch that are trained
        self._skipped = 0  # batches of the first epoch that were trained before this fit
        self._seen = 0  # batches that Keras has counted in this epoch

    def request_stop(self) -> None:
        """Asks for what SIGTERM does; for handlers of other signals. Any rank may call it."""
        self._termination.requested = True

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """As in keras.callbacks.Callback.

        Raises:
            RuntimeError: the checkpoints cannot be read or written, do not fit the model, or there
                is none and one is required; on every rank.
            NotImplementedError: a model of Keras 3.0, unless restore=False was given.
        """
        super().on_train_begin(logs)
        self.stopped = self._termination.requested = False
        self.position, self._step, self._skipped = None, 0, 0
        self._begin()
        wanted = self._wanted_generation
        if wanted is not None:
            self._checkpoints.generation = wanted() if callable(wanted) else wanted
        self._saved = self._step
        self._agreement.begin(self._step)
        if self._at_sigterm != "ignore":
            self._termination.watch()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """As in keras.callbacks.Callback."""
        super().on_epoch_begin(epoch, logs)
        first = self.position is not None and epoch == self.position.epoch
        self._skipped = self._skipped if first else 0
        self._epoch, self._batch, self._seen = epoch, self._skipped, 0

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """As in keras.callbacks.Callback.

        Raises:
            StopIteration: the epoch, whose beginning was trained before, is complete; Keras ends
                it.
        """
        super().on_train_batch_begin(batch, logs)
        steps = self._steps()
        if self._skipped and steps is not None and self._skipped + batch >= steps:
            raise StopIteration

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """As in keras.callbacks.Callback.

        Raises:
            RuntimeError: an earlier checkpoint could not be written; on every rank.
            SystemExit: all ranks were asked to leave, and have.
        """
        super().on_train_batch_end(batch, logs)
        self._step += batch + 1 - self._seen
        self._seen = batch + 1
        self._batch = self._skipped + self._seen
        if find_join(self.model) is not None:  # the other ranks may be in another step
            return
        due = self._checkpoints.due_at_step(self._step, self._saved)
        if self._agreement.is_due(self._step):
            due |= self._agree()
        last = self._batch == self._steps()
        if (due and not last) or self.stopped:  # after the last batch the epoch's end saves
            self._save(self._epoch, self._batch)
        if self.stopped:
            self._leave()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """As in keras.callbacks.Callback; raises what on_train_batch_end does."""
        super().on_epoch_end(epoch, logs)
        if self.stopped:  # within the epoch
            return
        wait_for_all(self.model)
        due = self._checkpoints.due_at_epoch(epoch + 1)
        if find_join(self.model) is None:
            due |= self._checkpoints.due_at_step(self._step, self._saved)
        due |= self._agree()
        if due or self.stopped:
            self._save(epoch + 1, 0, logs)
        if self.stopped:
            self._leave()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """As in keras.callbacks.Callback; saves what is not saved yet, and waits for the storage.

        Raises:
            RuntimeError: a checkpoint could not be written; on every rank.
        """
        super().on_train_end(logs)
        facts.begin_fit_at(self.model, None)  # a later fit begins where it is told to
        self._termination.unwatch()
        if not self.stopped:
            if self._checkpoints.kept != self._step:
                self._save(self._epoch + 1, 0, must=True)
            self._checkpoints.publish()

    def _begin(self) -> None:
        """Goes on from the newest checkpoint, if there is one."""
        if self._checkpoints.restores and not detect.is_model(self.model):
            instead = "say restore=False, and use hvd.restore_checkpoint and fit(initial_epoch=...)"
            refuse_to_resume(self.model, "CheckpointCallback", instead)
        cursor = self._data()
        found = self._checkpoints.begin(self.model, cursor=cursor, local_variables=self.local())
        if found is None:
            return
        self.position, self._step = found, found.step
        if self._cursor is not None:
            self._skipped = found.batch
        elif cursor is not None:
            self._skipped = cursor.trained(found.batch)
        elif found.batch and topology.rank() == 0:
            warnings.warn(
                f"the checkpoint was taken after batch {found.batch} of epoch {found.epoch + 1}, "
                "whose data begins anew: to go on within it give fit what hvd.shard has made, or "
                "CheckpointCallback a cursor",
                stacklevel=3,
            )
        facts.begin_fit_at(self.model, found.epoch)
        wanted = (self.params or {}).get("epochs")
        if topology.rank() == 0 and wanted is not None and found.epoch >= wanted:
            warnings.warn(
                f"fit has nothing to do: the checkpoint in {self._checkpoints} has been trained "
                f"for {found.epoch} epochs, and fit was given epochs={wanted}. Give it more, or "
                "another folder for another training",
                stacklevel=3,
            )

    def _data(self) -> Any:
        """Which data comes next: the cursor that was given, or that of `shard`'s data."""
        return self.fit.passes if self._cursor is None else self._cursor

    def _agree(self) -> bool:
        """Asks all ranks whether one wants to stop; returns whether a checkpoint is due by time."""
        due = self._checkpoints.due_by_time()
        stop, due = self._agreement.ask(self._step, self._termination.requested, due)
        self.stopped |= stop
        return due

    def _save(
        self,
        epoch: int,
        batch: int,
        logs: Mapping[str, Any] | None = None,
        *,
        must: bool = False,
    ) -> None:
        self._checkpoints.save(
            self.model,
            step=self._step,
            epoch=epoch,
            batch=batch,
            cursor=self._data(),
            values=self._values() if self._values is not None else None,
            metrics={k: float(v) for k, v in (logs or {}).items() if np.ndim(v) == 0},
            local_variables=self.local(),
            must=must or self.stopped,
        )
        self._saved = self._step

    def _leave(self) -> None:
        """Publishes, and ends training on all ranks, which have all come here."""
        self._checkpoints.publish()
        self.model.stop_training = True
        if self._at_sigterm == "exit":
            facts.begin_fit_at(self.model, None)
            self._termination.unwatch()
            raise SystemExit(read_settings(os.environ).stopped_exit_code)

    def _steps(self) -> int | None:
        steps: int | None = (self.params or {}).get("steps")
        return steps

    def _fits(self, frame: FrameType | None) -> bool:
        """Whether the model's `fit` is among the callers of a frame."""
        return fit_frame(self.model, frame) is not None
