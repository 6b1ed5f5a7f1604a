"""MetricAverageCallback: the metrics of an epoch as means over the ranks."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from tfring import _native, topology
from tfring.collectives import objects
from tfring.exceptions import tf_errors
from tfring.keras.callbacks.base import DistributedCallback, set_averaged, wait_for_all
from tfring.keras2 import facts
from tfring.ops import reduce_ops


class MetricAverageCallback(DistributedCallback):
    """Replaces the epoch's metrics by their mean over the ranks.

    Put it before callbacks that act on metrics (ReduceLROnPlateau, EarlyStopping, checkpoints), so
    that all ranks decide alike.
    """

    def __init__(self, device: str = "", *, weighted: bool = False) -> None:
        """Sets which mean to take.

        Args:
            device: accepted for Horovod's sake: the metrics are averaged on the CPU.
            weighted: weigh every rank by its number of samples: training metrics by those of the
                epoch, validation metrics by those of the validation. Keras counts samples in its
                loss metric. If a model's own train_step does not update that metric, the weights
                are the numbers of batches, and equal for validation.
        """
        super().__init__()
        self.device = device
        self.weighted = weighted
        self._batches = 0
        self._trained: float | None = None
        self._validated = 0.0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """As in keras.callbacks.Callback."""
        super().on_epoch_begin(epoch, logs)
        self._batches, self._trained, self._validated = 0, None, 0.0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """As in keras.callbacks.Callback."""
        super().on_train_batch_end(batch, logs)
        self._batches = batch + 1

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """As in keras.callbacks.Callback."""
        self._trained = self._samples()  # validation counts anew

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """As in keras.callbacks.Callback."""
        self._validated = self._samples()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """As in keras.callbacks.Callback."""
        super().on_epoch_end(epoch, logs)
        wait_for_all(self.model)
        if logs is None:
            return
        keys = sorted(key for key, value in logs.items() if _is_number(value))
        self._check_keys(epoch, keys)
        if not keys:
            return
        training, validation = self._shares() if self.weighted else [1 / topology.size()] * 2
        shares = [validation if key.startswith("val_") else training for key in keys]
        values = np.array([float(logs[key]) for key in keys], dtype=np.float64)
        with tf_errors():
            mean = _native.core.allreduce(
                values * np.array(shares), name="tfring.metric_average", op=reduce_ops.Sum
            )
        for key, value in zip(keys, mean, strict=True):
            logs[key] = float(value)
        set_averaged(self.model, epoch)

    def _samples(self) -> float:
        """Returns how many samples Keras has counted since it last reset the metrics."""
        tracker = facts.loss_tracker(self.model)
        return 0.0 if tracker is None else facts.number(tracker.count)

    def _shares(self) -> tuple[float, float]:
        """Returns this rank's shares in training and in validation."""
        trained = self._samples() if self._trained is None else self._trained
        mine = np.array([[trained, self._validated, self._batches]], dtype=np.float64)
        with tf_errors():
            everywhere = _native.core.allgather(mine, name="tfring.metric_average.samples")
        counted = np.all((everywhere[:, 0] > 0) | (everywhere[:, 2] == 0))
        training = _share(mine[0], everywhere, 0 if counted else 2)
        return training, _share(mine[0], everywhere, 1)

    def _check_keys(self, epoch: int, keys: list[str]) -> None:
        digest = hashlib.sha256("\n".join(keys).encode()).digest()[:8]
        mine = np.frombuffer(digest, dtype=np.int64)
        with tf_errors():
            hashes = _native.core.allgather(mine, name="tfring.metric_average.keys")
        if len(set(hashes.tolist())) == 1:
            return
        everywhere = objects.allgather_json(keys, name="tfring.metric_average.differ")
        lists = "; ".join(f"rank {rank}: {', '.join(k)}" for rank, k in enumerate(everywhere))
        raise RuntimeError(
            f"rank {topology.rank()}: the ranks have different metrics at the end of epoch "
            f"{epoch + 1} ({lists}). Give all ranks the same metrics and validation data"
        )


def _share(mine: Any, everywhere: Any, column: int) -> float:
    total = float(everywhere[:, column].sum())
    return float(mine[column]) / total if total else 1 / len(everywhere)


def _is_number(value: Any) -> bool:
    if isinstance(value, (bool, str)) or value is None:
        return False
    return np.ndim(value) == 0 and np.issubdtype(np.asarray(value).dtype, np.number)
