"""CheckpointCallback: saves in `fit`, resumes from what was saved, and leaves at SIGTERM."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import keras
import numpy as np

from tfring.keras import detect, facts
from tfring.keras.agreement import Agreement
from tfring.keras.callbacks import running_fit
from tfring.keras.callbacks.base import LocalVariablesCallback, wait_for_all
from tfring.keras.callbacks.checkpoints.boundary import UpdateBoundary
from tfring.keras.callbacks.checkpoints.rank_state import EpochMetrics
from tfring.keras.callbacks.checkpoints.training_checkpoints import TrainingCheckpoints
from tfring.keras.callbacks.checkpoints.training_state import TrainingPosition
from tfring.keras.callbacks.checkpoints.unseen_state import stateful_ops
from tfring.keras.callbacks.fits import find_join
from tfring.keras.callbacks.state import Decisions
from tfring.runtime import topology
from tfring.runtime.settings.environment import read_settings
from tfring.runtime.signals.termination import TerminationRequest

_AT_SIGTERM = ("exit", "return", "ignore")


@dataclasses.dataclass
class _Done:
    """What is trained."""

    step: int = 0
    saved: int = 0  # of these steps, those in the last checkpoint
    epoch: int = 0
    skipped: int = 0  # batches of this epoch, before this fit
    seen: int = 0  # batches of it that Keras has counted

    @property
    def batch(self) -> int:
        """The trained batches of this epoch."""
        return self.skipped + self.seen


@dataclasses.dataclass
class _Wanted:
    """What is due when no gradient would be lost."""

    due: bool = False  # a checkpoint
    stops: bool = False  # the end of training
    cut: bool = False  # a callback has ended training within this epoch
    logs: Mapping[str, Any] | None = None  # of the epoch whose end made a checkpoint due


class CheckpointCallback(LocalVariablesCallback):
    """Saves the state of training, so that the same program, started again, resumes from there.

    When `fit` begins, all ranks get the newest valid checkpoint, if there is one, and `fit` resumes
    with its epoch. If `fit` gets data of `shard` or `shard_batches`, or a `cursor` is given, it
    resumes within the epoch, as if it had never stopped. While it trains, each rank copies its
    share of the state and a thread writes it. At SIGTERM all ranks finish the same step, publish a
    checkpoint and leave.

    Keras calls it after all other callbacks, wherever it is in the list. A checkpoint also keeps
    the state of other callbacks: of Keras' own, and of those that have `state_dict()` and
    `load_state_dict(state)`. Callbacks that count batches within an epoch begin with 0 in an epoch
    that is resumed. Where gradients are accumulated it waits for the update before it saves or
    stops. With a JoinCallback it saves and stops at the end of epochs only.

    Attributes:
        position: where the last `fit` began, a TrainingPosition; None if it began anew.
        stopped: whether SIGTERM or `request_stop` ended the last `fit`.
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
        """Sets where and when to save; the same on every rank.

        Args:
            checkpoints: a Checkpointer, or the path or URL of its folder.
            every_epochs: saves at the end of every n-th epoch; None for never.
            every_steps: saves after every n-th step of training; None for never.
            every_seconds: saves when so many seconds have passed on rank 0; None for never.
            cursor: which data comes next: an object with `state_dict()`, which returns values of
                JSON, and `load_state_dict(state)`. It has to count trained data, not data that was
                read ahead. None: the cursor of data of `shard` or `shard_batches`; with other data
                an interrupted epoch begins anew.
            restore: whether `fit` resumes from the newest checkpoint. If not it begins anew, and
                what it saves wins over what is there. "required": no checkpoint is an error.
            generation: which generation of the job saves, or a function that returns it; None is a
                new one, which is reserved when `fit` begins.
            at_sigterm: "exit" publishes a checkpoint and raises SystemExit within `fit`, with
                TFRING_STOPPED_EXIT_CODE (75); "return" publishes, too, and lets `fit` return;
                "ignore" leaves the signal alone.
            values: returns more to keep: values that JSON can hold. Those of rank 0 count.
            local_variables: this rank's own variables of the model, which are not saved.

        Raises:
            ValueError: a number that is not positive, or an unknown word for restore or at_sigterm.
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
        self._agreement, self._boundary = Agreement(), UpdateBoundary()
        self._termination = TerminationRequest(self._fits)
        self.position: TrainingPosition | None = None
        self.stopped = False
        self._done, self._wanted = _Done(), _Wanted()
        self._callbacks: Any = None  # Keras' list of all of this fit
        self._rates: Decisions | None = None  # learning-rate changes of the resumed epoch
        # Metrics of the resumed epoch, until Keras' metrics have been restored.
        self._metrics: EpochMetrics | None = None

    def request_stop(self) -> None:
        """Does what SIGTERM does; for handlers of other signals. Any rank may call it."""
        self._termination.requested = True

    def set_model(self, model: Any) -> None:
        """Makes this the last callback of the list.

        Callbacks that Keras adds are behind those of the user, and users add some behind the result
        of fit_callbacks. A checkpoint has to hold the state that all of them have left.
        """
        super().set_model(model)
        self._callbacks = running_fit.list_with(self)
        if self._callbacks is not None:  # a new list: Keras goes through the present one
            others = [each for each in self._callbacks.callbacks if each is not self]
            self._callbacks.callbacks = [*others, self]

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Resumes from the newest checkpoint.

        Raises:
            RuntimeError: the checkpoints cannot be read or written, do not fit the model, or there
                is none and one is required; on every rank.
            ValueError: another CheckpointCallback restores, too, or saves to the same folder.
            NotImplementedError: a model of Keras 3.0, unless restore=False was given.
        """
        super().on_train_begin(logs)
        self._refuse_another()
        self.stopped = self._termination.requested = False
        self._done, self._wanted = _Done(), _Wanted()
        self.position = self._metrics = self._rates = None
        self._begin()
        self._warn_of_unseen_state()
        wanted = self._wanted_generation
        if wanted is not None:
            self._checkpoints.generation = wanted() if callable(wanted) else wanted
        self._done.saved = self._done.step
        self._agreement.begin(self._done.step)
        if self._at_sigterm != "ignore":
            self._termination.watch()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_begin(epoch, logs)
        first = self.position is not None and epoch == self.position.epoch
        trained = self._done.skipped if first else 0
        self._done.skipped = running_fit.shorten_epoch(self.model, self._steps(), trained)
        self._done.epoch, self._done.seen, self._wanted.cut = epoch, 0, False
        if first and self._rates is not None:  # they had this epoch's changes already
            self._rates.apply_rates(self.model)
        if not self._done.skipped or (self._metrics and self._metrics.give_back(self.model)):
            self._metrics = None

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Raises StopIteration if the epoch, which began in an earlier run, is complete."""
        super().on_train_batch_begin(batch, logs)
        steps = self._steps()
        if self._done.skipped and steps is not None and self._done.skipped + batch >= steps:
            raise StopIteration

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Saves and leaves if that is due.

        Raises:
            RuntimeError: an earlier checkpoint could not be written, on every rank; or a callback
                has ended training here, and not on every rank.
            SystemExit: all ranks were asked to leave, and have.
        """
        super().on_train_batch_end(batch, logs)
        self._done.step += batch + 1 - self._done.seen
        self._done.seen = batch + 1
        self._checkpoints.look_at_loss(self.model, logs)
        if self._metrics is not None:
            self._metrics.add_to(self.model)
            self._metrics = None
        if find_join(self.model) is not None:  # the other ranks may be in another step
            return
        self._wanted.due |= self._checkpoints.due_at_step(self._done.step, self._done.saved)
        if self._agreement.is_due(self._done.step):
            self._agree()
        if self._done.batch == self._steps():  # the epoch's end saves
            return
        if self.model.stop_training and not self.fit.reduced_by_user:
            self.fit.stop_together(self.model)
            # The rest of the epoch is still to be trained.
            self._wanted.cut = self._wanted.due = True
        self._settle(self._done.epoch, self._done.batch, final=self._wanted.cut)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Saves and leaves if that is due; raises what on_train_batch_end does."""
        super().on_epoch_end(epoch, logs)
        if self.stopped or self._wanted.cut:  # within the epoch
            return
        wait_for_all(self.model)
        joins = find_join(self.model) is not None
        last = self._agree() or epoch + 1 == (self.params or {}).get("epochs")
        self._wanted.due |= last or self._checkpoints.due_at_epoch(epoch + 1)
        if not joins:
            self._wanted.due |= self._checkpoints.due_at_step(self._done.step, self._done.saved)
        self._wanted.logs = logs if self._wanted.due else None
        self._settle(epoch + 1, 0, final=last or joins)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Waits for the storage.

        Raises:
            RuntimeError: a checkpoint could not be written; on every rank.
        """
        super().on_train_end(logs)
        facts.begin_fit_at(self.model, None)  # a later fit begins where it is told to
        self._termination.unwatch()
        if not self.stopped:
            self._checkpoints.publish()

    def _refuse_another(self) -> None:
        """Refuses a second callback: weights of one would be trained with data of the other."""
        for other in () if self._callbacks is None else self._callbacks.callbacks:
            if isinstance(other, CheckpointCallback) and other is not self:
                mine, its = self._checkpoints, other._checkpoints
                if str(mine) == str(its) or (mine.restores and its.restores):
                    raise ValueError(
                        f"fit has two CheckpointCallbacks, for {its} and {mine}. Give it one, or "
                        "one of them another folder and restore=False"
                    )

    def _begin(self) -> None:
        """Resumes from the newest checkpoint, if there is one."""
        begins_later = detect.is_model(self.model) or hasattr(self.model, "_initial_epoch")
        if self._checkpoints.restores and not begins_later:
            raise NotImplementedError(
                f"rank {topology.rank()}: CheckpointCallback needs Keras 3.1: fit of Keras "
                f"{keras.__version__} begins with the first epoch, whatever was loaded. Install a "
                'newer one (pip install "keras>=3.1"), or say restore=False, and use '
                "hvd.restore_checkpoint and fit(initial_epoch=...)"
            )
        cursor = self._data()
        found = self._checkpoints.begin(self.model, cursor=cursor, local_variables=self.local())
        if found is None:
            return
        self.position, self._done.step = found, found.step
        if self._cursor is not None:
            self._done.skipped = found.batch
        elif cursor is not None:
            self._done.skipped = cursor.trained(found.batch)
        elif found.batch and topology.rank() == 0:
            warnings.warn(
                f"The checkpoint was taken after batch {found.batch} of epoch {found.epoch + 1}, "
                "and the data of this epoch begins anew.\nTo resume within the epoch give fit data "
                "of hvd.shard, or CheckpointCallback a cursor.",
                stacklevel=3,
            )
        if self._callbacks is not None:
            self._checkpoints.give_back(found, self._callbacks.callbacks[:-1])
        self._metrics = found.metrics
        self._rates = Decisions.of(self.model) if found.batch else None
        wanted = (self.params or {}).get("epochs")
        if wanted is None or (found.epoch < wanted and not found.stopped):
            facts.begin_fit_at(self.model, found.epoch)
            return
        facts.begin_fit_at(self.model, max(found.epoch, wanted))
        if topology.rank() == 0:
            self._warn_of_the_end(found, wanted)

    def _warn_of_the_end(self, found: TrainingPosition, wanted: int) -> None:
        """Says why `fit` has nothing to do."""
        why = f"and fit was given epochs={wanted}. Give it more, or"
        if found.stopped:
            why = "when a callback ended its training. To train on say restore=False, and use "
            why += "hvd.restore_checkpoint and fit(initial_epoch=...). Or give fit"
        warnings.warn(
            f"fit has nothing to do: the checkpoint in {self._checkpoints} has been trained for "
            f"{found.epoch} epochs, {why} another folder for another training",
            stacklevel=4,
        )

    def _warn_of_unseen_state(self) -> None:
        """Names the ops of the data that draw from a state which no checkpoint has."""
        if topology.rank() != 0:
            return
        ops = stateful_ops(running_fit.fit_variables(self.model).get("x"))
        if ops:
            warnings.warn(
                f"The dataset has ops with a state that no checkpoint keeps: {', '.join(ops)}. "
                "After a restart they draw different numbers.\nUse tf.random.stateless_* ops, with "
                "seeds made of the epoch and the sample.",
                stacklevel=3,
            )

    def _data(self) -> Any:
        """Which data comes next: the cursor that was given, or that of `shard`'s data."""
        return self.fit.passes if self._cursor is None else self._cursor

    def _agree(self) -> bool:
        """Asks all ranks what they want; returns whether a callback has ended training."""
        stops, late = self._termination.requested, self._checkpoints.due_by_time()
        ends = bool(self.model.stop_training)
        stops, late, ends = self._agreement.ask(self._done.step, stops, late, ends)
        self._wanted.stops |= stops
        self._wanted.due |= late
        return ends

    def _settle(self, epoch: int, batch: int, *, final: bool = False) -> None:
        """Saves and leaves, if that is due and no gradient would be lost; else later.

        `final` says that there is no later step to do it after.
        """
        if not self._wanted.due and not self._wanted.stops:
            return
        if not self._boundary.is_here(self.model, final=final):
            return
        self._save(epoch, batch, must=final or self._wanted.stops)
        if self._wanted.stops:
            self._leave()

    def _save(self, epoch: int, batch: int, *, must: bool) -> None:
        logs, callbacks = self._wanted.logs or {}, self._callbacks
        self._checkpoints.save(
            self.model,
            step=self._done.step,
            epoch=epoch,
            batch=batch,
            cursor=self._data(),
            values=self._values() if self._values is not None else None,
            metrics={k: float(v) for k, v in logs.items() if np.ndim(v) == 0},
            local_variables=self.local(),
            must=must,
            callbacks=() if callbacks is None else callbacks.callbacks[:-1],
        )
        self._done.saved, self._wanted.due, self._wanted.logs = self._done.step, False, None

    def _leave(self) -> None:
        """Publishes, and ends training on all ranks, which have all come here."""
        self.stopped = True
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
        return running_fit.fit_frame(self.model, frame) is not None
