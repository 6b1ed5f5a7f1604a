"""The checkpoints of elastic `fit`, from which the next job resumes."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfring.elastic import process as processes
from tfring.keras.callbacks.checkpoints.training_checkpoints import TrainingCheckpoints
from tfring.keras.callbacks.checkpoints.training_state import TrainingPosition
from tfring.keras.elastic.fit_state import Epochs, FitState

_EPOCHS = "epochs"


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
