"""BestModelCheckpoint: rank 0 saves the best model so far."""

from __future__ import annotations

import warnings
from typing import Any

import keras

from tfring.keras.callbacks.fits import fit_of
from tfring.keras.facts import Keras2Callback
from tfring.keras.saving import SavedTogether
from tfring.runtime import topology


class BestModelCheckpoint(Keras2Callback, keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """keras.callbacks.ModelCheckpoint with save_best_only=True, on rank 0 alone.

    The other ranks do nothing, so the callback may be given to rank 0 only. Put it after
    MetricAverageCallback: rank 0 then decides by the mean of all ranks' metrics. With a number for
    `save_freq` it decides by its own metrics: they are averaged only at the end of an epoch.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        *,
        filepath: Any = None,
    ) -> None:
        """Sets what to save; the parameters are those of keras.callbacks.ModelCheckpoint.

        Args:
            monitor: the metric.
            verbose: 1 prints a line when something is saved.
            save_weights_only: save the weights instead of the model.
            mode: "min", "max" or "auto": which values are better.
            save_freq: "epoch" or a number of batches.
            filepath: where to save; may also be set as an attribute before `fit`, as in Horovod.
                Ends in .keras, or in .weights.h5 with save_weights_only.
        """
        suffix = ".weights.h5" if save_weights_only else ".keras"
        super().__init__(
            filepath=suffix if filepath is None else filepath,
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        if filepath is None:
            self.filepath = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Raises ValueError if there is no filepath."""
        super().on_train_begin(logs)
        if self.filepath is None:
            raise ValueError(
                "BestModelCheckpoint has no file to save to: give it filepath=, or set its "
                "attribute filepath before fit"
            )

    def _takes_part(self) -> bool:
        return topology.rank() == 0 or isinstance(self.model, SavedTogether)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if not self._takes_part():
            return
        if self.monitor_op is None:  # Keras makes it at the end of the first epoch only
            self._set_monitor_op()
        super().on_train_batch_end(batch, logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if not self._takes_part():
            return
        decides_now = self.save_freq == "epoch" and topology.size() > 1
        model = self.model.model if isinstance(self.model, SavedTogether) else self.model
        if decides_now and fit_of(model, self.params).averaged != epoch:
            warnings.warn(
                f"BestModelCheckpoint decides by {self.monitor} of rank 0 alone: put a "
                "MetricAverageCallback before it",
                stacklevel=2,
            )
        super().on_epoch_end(epoch, logs)
