"""FitState: the position of an elastic `fit`, in addition to what KerasState keeps."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from tfring.elastic.messages import strongest
from tfring.keras.elastic.state import KerasState

# Wishes of a rank, below changes of hosts: a change is told once, a wish as long as it lasts.
_SAVE, _STOP, _HOSTS = 1, 2, 4


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
        return update, wish == _STOP, wish == _SAVE

    def _knows_data(self) -> bool:
        return True

    def _take_steps(self, steps: int) -> None:
        self.data.commit(steps)
        self.batch += steps
        self.trained += steps
        self._commit_steps(steps)
