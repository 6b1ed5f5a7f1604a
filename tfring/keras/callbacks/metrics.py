"""MetricAverageCallback: the metrics of an epoch over the data of all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfring.keras import metric_states
from tfring.keras.callbacks.base import DistributedCallback, wait_for_all
from tfring.keras.metric_states import Part, States

_VALIDATION = "val_"


class MetricAverageCallback(DistributedCallback):
    """Replaces the epoch's metrics by those of the data of all ranks.

    Put it before callbacks that act on metrics (ReduceLROnPlateau, EarlyStopping, checkpoints).
    Then all ranks decide alike, by the metrics that one process would see.
    """

    def __init__(self, device: str = "", *, exact: bool = True) -> None:
        """Sets what the metrics become.

        Args:
            device: accepted for Horovod's sake: the metrics are computed on the CPU.
            exact: add up the states of metrics over the ranks, at the end of training and of
                validation in each epoch, as `hvd.evaluate` does. Losses, AUC, Precision, F1, counts
                and masked means are those of one process with all data. So are metrics of your own
                whose update_state only adds to their states (assign_add). Other values in the logs
                are means, weighted by the number of samples, or of batches where Keras has counted
                no samples. False: all values are plain means over the ranks, as in Horovod.
        """
        super().__init__()
        self.device = device
        self.exact = exact
        self._batches = 0
        self._trained: States | None = None
        self._validated = States()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_begin(epoch, logs)
        self._batches, self._trained, self._validated = 0, None, States()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_train_batch_end(batch, logs)
        self._batches = batch + 1

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._trained = self._states()  # validation begins anew

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        self._validated = self._states()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        wait_for_all(self.model)
        if logs is None:
            return
        numbers = {key: float(value) for key, value in logs.items() if _is_number(value)}
        validation = {key: v for key, v in numbers.items() if key.startswith(_VALIDATION)}
        training = {key: v for key, v in numbers.items() if key not in validation}
        states = self._states() if self._trained is None else self._trained
        parts = [
            Part(training, states, self._batches if self.exact else 0),
            Part(
                {key.removeprefix(_VALIDATION): v for key, v in validation.items()},
                self._validated,
                prefix=_VALIDATION,
            ),
        ]
        trained, validated = metric_states.over_ranks(
            self.model,
            parts,
            name="tfring.metric_average",
            what=f"have different metrics at the end of epoch {epoch + 1}",
            advice="give all ranks the same metrics and validation data",
        )
        logs.update(trained)
        logs.update({f"{_VALIDATION}{key}": value for key, value in validated.items()})
        self.fit.averaged = epoch

    def _states(self) -> States:
        return metric_states.states_of(self.model) if self.exact else States()


def _is_number(value: Any) -> bool:
    if isinstance(value, (bool, str)) or value is None:
        return False
    return np.ndim(value) == 0 and np.issubdtype(np.asarray(value).dtype, np.number)
