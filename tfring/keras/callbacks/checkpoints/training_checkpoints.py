"""TrainingCheckpoints: where and when training saves, and what it begins with."""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from tfring.checkpoint.manifest import checkpoint_name
from tfring.keras import facts
from tfring.keras.agreement import highest
from tfring.keras.callbacks.checkpoints import training_state
from tfring.keras.callbacks.checkpoints.training_state import TrainingPosition
from tfring.runtime import topology

_log = logging.getLogger("tfring")
_REQUIRED = "required"
_DIVERGED = (
    "training has ended with a loss that is nan or inf, of which no checkpoint is made. Started "
    "again, it goes on from the newest one in {}, or from the beginning. A lower learning rate or "
    "clipnorm= may help; TFRING_CHECK_VALUES=warn names the first gradients that are not finite"
)


class TrainingCheckpoints:
    """What CheckpointCallback, fit_callbacks and elastic.fit share; see `tfring help checkpoints`.

    Attributes:
        generation: the one that saves. `begin` reserves it, and if it is None the next save.
        kept: how many steps were trained in the last restored or saved checkpoint; None if that is
            not known. A training that has diverged counts as saved.
    """

    def __init__(
        self,
        given: Any,
        *,
        every_epochs: int | None,
        every_steps: int | None,
        every_seconds: float | None,
        restore: bool | str,
    ) -> None:
        """Takes the parameters of CheckpointCallback with these names. Touches no storage.

        Raises:
            ValueError: an interval that is not positive, or an unknown word for restore.
        """
        every = {
            "every_epochs": every_epochs,
            "every_steps": every_steps,
            "every_seconds": every_seconds,
        }
        wrong = [
            f"{key}={value}" for key, value in every.items() if value is not None and value <= 0
        ]
        if wrong:
            raise ValueError(f"checkpoints: {', '.join(wrong)}: intervals are positive or None")
        if restore not in (True, False, _REQUIRED):
            raise ValueError(
                f"checkpoints: restore={restore!r}: it is True, False or {_REQUIRED!r}"
            )
        self._checkpoints = training_state.checkpointer(given)
        self._every_epochs, self._every_steps = every_epochs, every_steps
        self._every_seconds, self._restores = every_seconds, restore
        self._saved_at = time.monotonic()
        self.generation: int | None = None
        self.kept: int | None = 0
        self._diverged = False

    def __str__(self) -> str:
        return str(self._checkpoints)

    @property
    def restores(self) -> bool:
        """Whether training goes on from the newest checkpoint."""
        return bool(self._restores)

    def begin(
        self, model: Any, *, cursor: Any = None, local_variables: Sequence[Any] = ()
    ) -> TrainingPosition | None:
        """Restores the newest checkpoint, and logs a line about it; a collective.

        The parameters are those of `restore_checkpoint`.

        Returns:
            Where training resumes; None if it begins anew.

        Raises:
            RuntimeError: the checkpoints cannot be read or do not fit the model, there is none and
                one is required, or the folder cannot be written to; on every rank.
        """
        found = None
        if self._restores:
            given = {"cursor": cursor, "local_variables": local_variables}
            found = training_state.restore_checkpoint(self._checkpoints, model, **given)
        if found is None and self._restores == _REQUIRED:
            raise RuntimeError(
                f"rank {topology.rank()}: rank 0 finds no checkpoint in {self}, and restore is "
                f"{_REQUIRED!r}. Look whether the folder is the right one and is mounted, or say "
                "restore=True to begin anew"
            )
        self.generation = training_state.reserve(self._checkpoints)
        self._saved_at, self.kept = time.monotonic(), 0 if found is None else found.step
        self._diverged = False
        if topology.rank() == 0:
            _log.info("%s", self._beginning(found))
        return found

    def give_back(self, found: TrainingPosition, callbacks: Sequence[Any]) -> None:
        """Restores callbacks, after their `on_train_begin`; rank 0 logs which begin anew."""
        anew = found.memory.give_back(callbacks)
        if anew and topology.rank() == 0:
            _log.warning(
                "These callbacks begin anew, because the checkpoint has no state of them: %s.\n"
                "Give a callback state_dict() and load_state_dict(state) to keep its state.",
                ", ".join(anew),
            )

    def due_at_epoch(self, epochs: int) -> bool:
        """Returns whether to save after so many epochs; the same on all ranks."""
        return self._every_epochs is not None and epochs % self._every_epochs == 0

    def due_at_step(self, step: int, saved: int) -> bool:
        """Returns whether to save after `step` steps, `saved` of them in the last checkpoint."""
        return (
            self._every_steps is not None and step // self._every_steps > saved // self._every_steps
        )

    def due_by_time(self) -> bool:
        """Returns whether this rank is rank 0 and its clock says to save."""
        if self._every_seconds is None or topology.rank() != 0:
            return False
        return time.monotonic() - self._saved_at >= self._every_seconds

    def look_at_loss(self, model: Any, logs: Mapping[str, Any] | None) -> None:
        """Notices that a callback such as TerminateOnNaN ends training; call it after each batch.

        Such a state is not saved: it would take the place of a usable one.
        """
        if model.stop_training and not math.isfinite(facts.loss_in(logs) or 0.0):
            self._diverged = True

    def save(self, model: Any, **given: Any) -> None:
        """Calls `save_checkpoint` in the generation of this job, unless training has diverged."""
        if highest([self._diverged], "tfring.checkpoint.diverged")[0]:
            if given.get("must") and topology.rank() == 0:
                warnings.warn(_DIVERGED.format(self), stacklevel=4)
            self.kept = given["step"]
            return
        if self.generation is None:
            patience = self._checkpoints.timeout  # a job that trains outlives a hiccup
            self.generation = training_state.reserve(self._checkpoints, patience)
        given = {"generation": self.generation, **given}
        if training_state.save_checkpoint(self._checkpoints, model, **given):
            self.kept = given["step"]
        self._saved_at = time.monotonic()

    def publish(self) -> None:
        """Waits until all ranks have published what was saved; a collective.

        Raises:
            RuntimeError: it could not be written; on every rank.
        """
        training_state.publish(self._checkpoints)

    def leave(self) -> None:
        """Lets this process end without its part of the last checkpoint; rank 0 writes its own.

        Ranks that stay have the state, and save a newer one.
        """
        if topology.rank() != 0:
            self._checkpoints.abandon()

    def _beginning(self, found: TrainingPosition | None) -> str:
        if found is not None:
            name = checkpoint_name(found.generation, found.step)
            done = f"{found.batch} of its batches trained" if found.batch else "from its beginning"
            return (
                f"training goes on from checkpoint {name} in {self}: step {found.step}, epoch "
                f"{found.epoch + 1}, {done}"
            )
        if not self._restores:
            return f"training begins anew, as restore=False says, and saves to {self}"
        return f"there is no checkpoint in {self}: training begins anew"
