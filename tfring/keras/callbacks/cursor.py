"""CursorCallback: tells an ElasticDataset about every step of `fit`."""

from __future__ import annotations

from typing import Any

import keras


class CursorCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Commits every step of `fit` to the data, and gives the optimizer the policy's learning rate.

    Also ends a resumed epoch after the batches that were left of it.

    Put it before callbacks that save the state of the data. With `Policy(..., per_rank=True)`, each
    step multiplies the learning rate by the change of the policy's factor. So other callbacks may
    change the rate, too; one that sets it anew multiplies it by `dataset.rate_factor` itself.

    The thread that calls `fit` uses it, for one `fit` at a time.
    """

    def __init__(self, dataset: Any) -> None:
        """Takes the ElasticDataset that `fit` gets, or the DataCursor of its data."""
        super().__init__()
        self._cursor = getattr(dataset, "cursor", dataset)
        self._batches = 0  # of this epoch of fit that are committed

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._batches = 0

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Sets the learning rate; ends a resumed epoch.

        Such an epoch has fewer batches than Keras expects. If Keras ran a step to find that out,
        the step would fail for want of data, but count in `optimizer.iterations`.

        Raises:
            StopIteration: no batch of this epoch is left; `fit` then ends it.
            ValueError: the rate has to be changed and follows a schedule of the optimizer.
        """
        if self._batches > 0 and self._cursor.pass_is_done:
            raise StopIteration
        factor = self._cursor.rate_factor
        if factor == self._cursor.applied:
            return
        optimizer = self.model.optimizer
        try:
            optimizer.learning_rate = float(optimizer.learning_rate) * factor / self._cursor.applied
        except TypeError as error:
            raise ValueError(
                f"rank {self._cursor.rank}: the policy multiplies the learning rate by {factor}, "
                "which cannot be done to a LearningRateSchedule: give the optimizer a number, and "
                "change it by callbacks, or give a policy without per_rank"
            ) from error
        self._cursor.applied = factor

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Commits the steps since the last call."""
        self._cursor.commit(batch + 1 - self._batches)
        self._batches = batch + 1
