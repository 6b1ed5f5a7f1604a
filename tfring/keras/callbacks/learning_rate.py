"""Callbacks that set the learning rate, epoch by epoch or batch by batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfring.keras import facts
from tfring.keras.callbacks.base import DistributedCallback
from tfring.keras.callbacks.fits import find_join
from tfring.keras.gradient_hook import innermost
from tfring.runtime import topology


class LearningRateScheduleCallback(DistributedCallback):
    """Sets the learning rate to `initial_lr` times a multiplier, in a range of epochs.

    With momentum correction the velocity is scaled along with the learning rate (Goyal et al.,
    "Accurate, Large Minibatch SGD", remark 2), for SGD and RMSprop with momentum.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        """Sets the schedule.

        Args:
            initial_lr: the learning rate that the multiplier is applied to.
            multiplier: a function of the epoch; with staircase=False of a fractional epoch, at
                every batch. A number m stands for exponential decay, m ** (epoch - start_epoch).
            start_epoch: first epoch that is adjusted.
            end_epoch: first epoch that is not adjusted any more; None for never.
            staircase: adjust once per epoch.
            momentum_correction: scale the velocity with the learning rate.
            steps_per_epoch: batches per epoch; needed only where `fit` does not know it.

        Raises:
            ValueError: no initial_lr.
        """
        super().__init__()
        if initial_lr is None:
            raise ValueError("LearningRateScheduleCallback needs initial_lr")
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        self.staircase = staircase
        self.multiplier = multiplier if callable(multiplier) else self._decayed
        self._factor = 1.0 if callable(multiplier) else float(multiplier)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        super().on_train_begin(logs)
        optimizer = innermost(self.model.optimizer)
        if not facts.has_settable_rate(optimizer):
            raise TypeError(
                f"optimizer {facts.name_of(optimizer)!r} was made with a learning rate schedule; "
                f"{type(self).__name__} needs one with a number for learning_rate"
            )
        if not self.staircase and not self.steps_per_epoch:
            join = find_join(self.model)
            self.steps_per_epoch = self.params.get("steps") if join is None else join.most_steps()
            if not self.steps_per_epoch:
                raise ValueError(
                    f"fit does not know the number of steps per epoch; give {type(self).__name__} "
                    "steps_per_epoch="
                )

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_begin(epoch, logs)
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self.current_epoch < self.start_epoch:
            return
        if self.end_epoch is not None and self.current_epoch >= self.end_epoch:
            return
        if not self.staircase:
            self._adjust(self.current_epoch + batch / float(self.steps_per_epoch or 1))
        elif batch == 0:
            self._adjust(self.current_epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        if logs is not None:
            logs["lr"] = facts.number(self.model.optimizer.learning_rate)

    def _decayed(self, epoch: float) -> float:
        return float(self._factor ** (epoch - self.start_epoch))

    def _adjust(self, epoch: float) -> None:
        optimizer = innermost(self.model.optimizer)
        old = facts.number(optimizer.learning_rate)
        new = self.initial_lr * self.multiplier(epoch)
        optimizer.learning_rate = new
        if self.momentum_correction and old > 0 and new != old:
            # As if the momentum were scaled for one step. It is a constant in the traced step.
            for velocity in facts.velocities_of(optimizer):
                velocity.assign(velocity * (new / old))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from initial_lr / size to initial_lr over the first epochs.

    So it starts with the learning rate of one process. `initial_lr` is the rate at the end, with
    which the optimizer was made.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        """Sets the warm-up.

        Args:
            initial_lr: the learning rate at its end.
            warmup_epochs: how long it takes.
            momentum_correction: scale the velocity with the learning rate.
            steps_per_epoch: batches per epoch; needed only where `fit` does not know it.
            verbose: 1 prints a line at its end, on rank 0.
        """
        super().__init__(
            initial_lr,
            self._warm_up,
            start_epoch=0,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.warmup_epochs = warmup_epochs
        self.verbose = verbose

    def _warm_up(self, epoch: float) -> float:
        # The rate after the coming batches, so that the last ones of the warm-up reach initial_lr.
        # Keras calls this once for steps_per_execution batches.
        epoch += int(self.model.steps_per_execution) / float(self.steps_per_epoch or 1)
        epoch = min(epoch, float(self.warmup_epochs))
        size = topology.size()
        return (epoch * (size - 1) / self.warmup_epochs + 1) / size

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        if self.verbose > 0 and epoch == self.warmup_epochs - 1 and topology.rank() == 0:
            lr = facts.number(self.model.optimizer.learning_rate)
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {lr:g}.")
