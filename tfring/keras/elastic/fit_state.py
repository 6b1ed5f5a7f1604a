"""FitState: the position of an elastic `fit`. FitCheckpoints saves it."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from tfring.elastic import process as processes
from tfring.elastic.messages import strongest
from tfring.keras.callbacks.checkpoints.training_checkpoints import TrainingCheckpoints
from tfring.keras.callbacks.checkpoints.training_state import TrainingPosition
from tfring.keras.elastic.state import KerasState
from tfring.keras.model_optimizers import sharded_hooks
from tfring.runtime import topology

_log = logging.getLogger("tfring")

# Wishes of a rank, below changes of hosts: a change is told once, a wish as long as it lasts.
_SAVE, _STOP, _HOSTS = 1, 2, 4
_EPOCHS = "epochs"  # the key of the results in a checkpoint


@dataclasses.dataclass(frozen=True)
class Epochs:
    """The results of the trained epochs. Never changed, so that a commit copies nothing.

    Attributes:
        results: of each epoch its number, counted from 0, and its logs.
    """

    results: tuple[tuple[int, Mapping[str, Any]], ...] = ()

    def __deepcopy__(self, memo: dict[int, Any]) -> Epochs:
        return self

    def added(self, epoch: int, logs: Mapping[str, Any]) -> Epochs:
        """Returns these and one more."""
        return Epochs((*self.results, (epoch, dict(logs))))

    def as_json(self) -> list[Any]:
        """Returns them as JSON for a checkpoint."""
        return [
            [epoch, {name: np.asarray(value).tolist() for name, value in logs.items()}]
            for epoch, logs in self.results
        ]

    @classmethod
    def of_json(cls, value: Sequence[Any]) -> Epochs:
        """Returns the object whose `as_json` was saved."""
        return cls(tuple((int(epoch), dict(logs)) for epoch, logs in value))

    def history(self, model: Any) -> Any:
        """Returns them as the History that Keras' `fit` returns."""
        history = keras.callbacks.History()
        history.set_model(model)
        history.on_train_begin()
        for epoch, logs in self.results:
            history.on_epoch_end(epoch, dict(logs))
        return history


class FitState(KerasState):
    """The state of one call of `fit`.

    Attributes:
        data: the ElasticDataset.
        epoch: epochs that have ended, including the calls of callbacks.
        batch: trained batches of the present epoch.
        epochs: the results of the epochs.
        trained: trained steps, those of earlier jobs included.
        saved: how many of them are in the last checkpoint.
        stopped: whether a callback has ended training.
        restored: whether the newest checkpoint, if there is one, was loaded.
        has_checkpoints: whether training may go back to one.
        lost: which parts of sharded states are lost; "" once a checkpoint is loaded.
    """

    data: Any
    epoch: int
    batch: int
    epochs: Epochs
    trained: int
    saved: int
    stopped: bool
    restored: bool

    def __init__(self, model: Any, data: Any) -> None:
        """Begins before the first batch of an ElasticDataset."""
        self.has_checkpoints = False
        self.lost = ""  # what was lost of sharded states, until a checkpoint is loaded
        super().__init__(
            model,
            data=data,
            epoch=0,
            batch=0,
            epochs=Epochs(),
            trained=0,
            saved=0,
            stopped=False,
            restored=False,
        )
        for hook in sharded_hooks(model):
            hook.shards.traced_anew = True

    def add_steps(self, steps: int) -> None:
        """Counts steps as trained; they are not committed yet."""
        self.batch += steps
        self.trained += steps
        self.mark_step(steps)

    def commit_here(self) -> None:
        """Commits, without asking whether ranks are about to come or go; no collective."""
        self._commit_here()

    def ask(self, stop: bool, save: bool) -> tuple[int, bool, bool]:
        """Asks all ranks what comes after this commit. A collective.

        Returns:
            What has happened to the hosts; whether a rank wants all to stop, in a job that is not
                elastic; whether one wants a checkpoint. Of several, all ranks hear only the first.
        """
        wish = _STOP if stop else _SAVE if save else 0
        update, wish = divmod(strongest(self._heard() * _HOSTS + wish), _HOSTS)
        self._settle(update)
        return update, wish == _STOP, wish == _SAVE

    def _lose(self, what: str) -> None:
        if not self.has_checkpoints:
            super()._lose(what)
        self.lost = what

    def _synchronize(self, send: Callable[[int], None], root: int | None = None) -> None:
        self.lost = ""
        super()._synchronize(send, root)
        if self.lost:
            self.restored = False
            self.save()

    def _knows_data(self) -> bool:
        return True

    def _take_steps(self, steps: int) -> None:
        self.data.commit(steps)
        self.batch += steps
        self.trained += steps
        self._commit_steps(steps)


class FitCheckpoints(TrainingCheckpoints):
    """Saves and loads a FitState; `restore`, `save_state` and `publish` are collectives.

    Each generation of the job reserves one of the folder when it first saves. So a rank that was
    taken for lost writes under a lower name, and the highest name counts.
    """

    def __init__(self, given: Any, callbacks: Sequence[Any] = (), **when: Any) -> None:
        """Takes what TrainingCheckpoints does, and the callbacks whose states are kept."""
        super().__init__(given, **when)
        self._callbacks = list(callbacks)
        self._found: TrainingPosition | None = None

    def begin_generation(self) -> None:
        """Forgets what was saved: a rank that was lost may not have written its share."""
        self.generation, self.kept = None, None

    def begin_callbacks(self) -> None:
        """Restores the callbacks, after their `on_train_begin`."""
        if self._found is not None:
            self.give_back(self._found, self._callbacks)

    def restore(self, state: FitState) -> TrainingPosition | None:
        """Restores the newest checkpoint and returns it, or None; no rank has trained yet.

        Raises:
            RuntimeError: as `begin` does.
        """
        state.copy_all()  # a rank may be lost when only some of the variables have their new values
        found = self._found = self.begin(state.model, cursor=state.data)
        if state.lost:
            self._go_back(state, found)
        if found is not None:
            state.epoch, state.batch = found.epoch, found.batch
            state.epochs = Epochs.of_json(found.values.get(_EPOCHS, ()))
            state.trained = state.saved = found.step
            state.stopped = found.stopped
            place = state.data.state_dict()
            if (place["epoch"], place["consumed"]) <= (found.epoch, 0):
                # The end of the epoch before, or CheckpointCallback has saved it without a cursor.
                state.data.load_state_dict({**place, "epoch": found.epoch, "consumed": 0})
                state.batch = 0
        state.restored = True
        state.commit_here()
        return found

    def _go_back(self, state: FitState, found: TrainingPosition | None) -> None:
        """Says that training goes back to a checkpoint, because states are lost."""
        lost, state.lost = state.lost, ""
        if found is None:
            raise RuntimeError(f"{lost}\nThere is no checkpoint to go back to: start again.")
        if topology.rank() == 0:
            _log.warning("%s Training goes back to the checkpoint of step %d.", lost, found.step)

    def save_state(
        self,
        state: FitState,
        logs: Mapping[str, Any] | None = None,
        *,
        at_change: bool = False,
        leaves: bool = False,
        last: bool = False,
    ) -> None:
        """Saves the last commit; a thread writes it.

        Args:
            state: where training is.
            logs: their metrics choose the best checkpoints.
            at_change: all ranks have come to this commit to end the generation there. The next one
                resumes from it, so it may appear when this generation is over.
            leaves: this rank takes no part in the next generation.
            last: no other comes in this `fit`, or no rank stays: it is not skipped.

        Raises:
            RuntimeError: an earlier checkpoint could not be written.
        """
        process = processes.present()
        now = 0 if process is None else process.generation
        may_publish = None
        if process is not None and not at_change:
            may_publish = functools.partial(process.may_publish, now)
        self.save(
            state.model,
            step=state.trained,
            epoch=state.epoch,
            batch=state.batch,
            cursor=state.data,
            values={_EPOCHS: state.epochs.as_json()},
            metrics={k: float(v) for k, v in (logs or {}).items() if np.ndim(v) == 0},
            leaves=leaves,
            must=last,
            callbacks=self._callbacks,
            may_publish=may_publish,
        )
        state.saved = state.trained
