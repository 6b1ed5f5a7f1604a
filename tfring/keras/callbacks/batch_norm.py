"""BatchNormAverageCallback: the statistics of BatchNormalization over the data of all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfring.keras.callbacks import state
from tfring.keras.callbacks.base import LocalVariablesCallback, wait_for_all
from tfring.keras.callbacks.guard import train_together
from tfring.ops import reduce_ops
from tfring.runtime import _native
from tfring.runtime.exceptions import tf_errors
from tfring.training.local_variables import variable_key


class BatchNormAverageCallback(LocalVariablesCallback):
    """Averages the moving statistics of BatchNormalization layers over the ranks after each epoch.

    Each rank moves them by its own batches, so without this a saved model has those of one rank.
    The variance of one process is larger, by that of the ranks' means; SyncBatchNormalization
    includes it. Put this callback before those that save or average metrics.
    """

    def __init__(self, local_variables: Any = None) -> None:
        """Sets which variables are this rank's own and left out."""
        super().__init__(local_variables)
        self._due = False

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_begin(epoch, logs)
        self._due = True

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Averages before the validation at the end of an epoch."""
        self._average()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        self._average()

    def _average(self) -> None:
        if not self._due:
            return
        self._due = False
        wait_for_all(self.model)
        own = set(map(variable_key, self.local()))
        layers = [layer for layer in state.batch_norms(self.model) if layer.built]
        moving = [v for layer in layers for v in (layer.moving_mean, layer.moving_variance)]
        moving = [variable for variable in moving if variable_key(variable) not in own]
        if not moving or not train_together(self.model):
            return
        values = [np.asarray(variable, np.float32) for variable in moving]
        flat = np.concatenate([value.reshape(-1) for value in values])
        with tf_errors():
            _native.note_call_site()
            flat = _native.core.allreduce(flat, name="tfring.batch_norm", op=reduce_ops.Average)
        parts = np.split(flat, np.cumsum([value.size for value in values])[:-1])
        for variable, value, part in zip(moving, values, parts, strict=True):
            variable.assign(part.reshape(value.shape))
