"""fit_callbacks: the callbacks that most programs need, in the right order."""

from __future__ import annotations

from typing import Any

import keras

from tfring.collectives import objects
from tfring.keras import facts
from tfring.keras.callbacks.batch_norm import BatchNormAverageCallback
from tfring.keras.callbacks.broadcast import BroadcastGlobalVariablesCallback
from tfring.keras.callbacks.checkpoints.callback import CheckpointCallback
from tfring.keras.callbacks.learning_rate import LearningRateWarmupCallback
from tfring.keras.callbacks.metrics import MetricAverageCallback
from tfring.keras.callbacks.writers import Writers
from tfring.ops import arguments
from tfring.runtime import topology


def fit_callbacks(
    *callbacks: Any,
    log_dir: Any = None,
    checkpoint: Any = None,
    every_epochs: int | None = 1,
    every_steps: int | None = None,
    every_seconds: float | None = None,
    restore: bool | str = True,
    warmup: int = 0,
) -> list[Any]:
    """Returns callbacks for `model.fit`, in the order in which they have to come.

    1. All ranks get the weights and the optimizer's state of rank 0.
    2. With `warmup`: the learning rate rises.
    3. Metrics become those of the data of all ranks, as in hvd.evaluate. The statistics of
       BatchNormalization become their mean.
    4. Yours: all ranks see the same metrics, so EarlyStopping or ReduceLROnPlateau decide alike.
    5. With `log_dir`: rank 0 writes for TensorBoard.
    6. With `checkpoint`: a CheckpointCallback, which resumes from the newest checkpoint, saves, and
       at SIGTERM ends training after a checkpoint. It keeps the state of Keras' callbacks (the
       patience of EarlyStopping) and of those with `state_dict()`; see `tfring help checkpoints`.

    Args:
        callbacks: yours, the same on every rank. Where several ranks would write one file
            (ModelCheckpoint, CSVLogger, TensorBoard), only the first of them does. Others that
            write files belong on rank 0 only (`*([Mine(path)] if hvd.rank() == 0 else [])`).
        log_dir: folder for TensorBoard's event files. With it the call is a collective.
        checkpoint: a Checkpointer, or the path or URL of its folder. The model has to be built, and
            the same in every run. CheckpointCallback has more options.
        every_epochs: saves at the end of every n-th epoch; None for never.
        every_steps: saves after every n-th step of training; None for never.
        every_seconds: saves when so many seconds have passed on rank 0; None for never.
        restore: whether `fit` resumes from the newest checkpoint; "required": it must.
        warmup: number of epochs over which the learning rate rises to the one that the optimizer
            has when `fit` begins, from that divided by the number of ranks.

    Raises:
        ValueError: warmup is negative, or an interval is not positive.
        ImportError: there is no TensorBoard on rank 0; on every rank.
        tf.errors.FailedPreconditionError: tfring is not initialized.
    """
    arguments.require_init("fit_callbacks")
    if warmup < 0:
        raise ValueError(f"fit_callbacks: warmup={warmup}: it is a number of epochs")
    if log_dir is not None:
        _require_tensorboard()
    first = topology.rank() == 0
    saving = []
    if checkpoint is not None:
        saving.append(
            CheckpointCallback(
                checkpoint,
                every_epochs=every_epochs,
                every_steps=every_steps,
                every_seconds=every_seconds,
                restore=restore,
            )
        )
    return [
        BroadcastGlobalVariablesCallback(0),
        *([_Warmup(warmup)] if warmup else []),
        Writers(callbacks),
        BatchNormAverageCallback(),
        MetricAverageCallback(),
        *callbacks,
        *([keras.callbacks.TensorBoard(log_dir)] if log_dir is not None and first else []),
        *saving,
    ]


def _require_tensorboard() -> None:
    """Raises ImportError on all ranks if rank 0, which writes for it, has no TensorBoard."""
    failure = None
    if topology.rank() == 0:
        try:
            import tensorboard  # noqa: F401
        except ImportError as error:
            failure = str(error)
    root = objects.allgather_json(failure, name="tfring.fit_callbacks")[0]
    if root is not None:
        raise ImportError(
            f"rank {topology.rank()}: fit_callbacks(log_dir=...) needs TensorBoard on rank 0: pip "
            f"install tensorboard ({root})"
        )


class _Warmup(LearningRateWarmupCallback):
    """Warms up to the learning rate that the model was compiled with, before a state is loaded."""

    def __init__(self, epochs: int) -> None:
        super().__init__(initial_lr=0.0, warmup_epochs=epochs)

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        self.initial_lr = facts.rate_of(model.optimizer)
