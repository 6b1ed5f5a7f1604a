"""CommunicationMetricsCallback: how much of a step is communication."""

from __future__ import annotations

import logging
import math
from typing import Any

import keras
import numpy as np

from tfring.keras.callbacks.observing.event_files import EventFiles
from tfring.keras.facts import Keras2Callback
from tfring.observe.metrics.follower import News, RecordFollower
from tfring.observe.recorder.own import own_path
from tfring.runtime import topology

_log = logging.getLogger("tfring")

_NANO = 1e-9
NAMES = (
    "comm_seconds",
    "comm_exposed_seconds",
    "comm_waiting_seconds",
    "comm_bytes",
    "comm_tensors_per_plan",
)
_SUMS = 7  # that `_sums` returns


class CommunicationMetricsCallback(Keras2Callback, keras.callbacks.Callback):  # type: ignore[misc]
    """Adds to an epoch's logs how much of its steps was communication on this rank.

    - `comm_seconds`: per step, the time with at least one bucket of gradients under way.
    - `comm_exposed_seconds`: per step, the time from the last gradient until all were reduced: the
      cost of the communication, since nothing was left to compute.
    - `comm_waiting_seconds`: of that, the time in which other ranks had not asked for a bucket yet.
      The rank with the smallest value is the one that the others wait for.
    - `comm_bytes`: per step, the bytes of the gradients.
    - `comm_tensors_per_plan`: how many tensors ran together, over all collectives of the epoch.

    Put it before callbacks that read logs: keras.callbacks.TensorBoard and CSVLogger write the
    values, and MetricAverageCallback averages them over the ranks. They come from the record, which
    keeps the last 8,192 calls: of a longer epoch, they are means over the last steps. A value is
    NaN if there is no record (TFRING_RECORD=0), or no step has reduced gradients. The callback runs
    no collective, so it may be on some ranks only.
    """

    def __init__(self, log_dir: Any = None, update_freq: str | int = "epoch") -> None:
        """Sets where the values go besides the logs.

        Args:
            log_dir: folder for TensorBoard's event files, in which each rank has one of its own,
                rank-0 and so on; None: the values are in the logs only.
            update_freq: "epoch" writes the event files after each epoch, a number after so many
                batches. The logs always have the means of the epoch.

        Raises:
            ValueError: update_freq is neither.
        """
        super().__init__()
        if update_freq != "epoch" and (not isinstance(update_freq, int) or update_freq < 1):
            raise ValueError(
                f"CommunicationMetricsCallback: update_freq={update_freq!r} is neither 'epoch' nor "
                "a number of batches"
            )
        self._log_dir = log_dir
        self._every = 0 if update_freq == "epoch" or log_dir is None else int(update_freq)
        self._follower: RecordFollower | None = None
        self._files: EventFiles | None = None
        self._batches = self._earlier = 0  # of this fit: until now, and in epochs before this one
        self._epoch = np.zeros(_SUMS)  # since its beginning
        self._part = np.zeros(_SUMS)  # since event files were last written

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        path = own_path()
        self._follower = None if path is None else RecordFollower(path)
        if path is None:
            _log.warning(
                "CommunicationMetricsCallback has nothing to read: tfring is not initialized, or "
                "keeps no record (TFRING_RECORD)"
            )
        self._files = None if self._log_dir is None else EventFiles(self._log_dir)
        self._batches = 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._earlier = self._batches
        self._look()  # what was before the epoch
        self._epoch, self._part = np.zeros(_SUMS), np.zeros(_SUMS)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        # One execution of the train function may be several batches.
        before, self._batches = self._batches, self._earlier + batch + 1
        if self._every and self._batches // self._every > before // self._every:
            self._look()
            self._write(_means(self._part), self._batches)
            self._part = np.zeros(_SUMS)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._look()
        means = _means(self._epoch)
        if logs is not None:
            logs.update(means)
        if not self._every:
            self._write(means, epoch)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._follower = None
        if self._files is not None:
            self._files.close()

    def _look(self) -> None:
        """Adds the finished steps: between two batches, all that have begun are finished."""
        if self._follower is None:
            return
        try:
            news = self._follower.look(all_are_over=True)
        except (OSError, ValueError) as error:
            _log.warning("CommunicationMetricsCallback cannot read the record any more: %s", error)
            self._follower = None
            return
        sums = _sums(news)
        self._epoch += sums
        self._part += sums

    def _write(self, means: dict[str, float], step: int) -> None:
        if self._files is not None:
            self._files.write(topology.rank(), means, step)


def _sums(news: News) -> Any:
    """Returns sums over the new steps and plans: the counts of both, then what the means are of."""
    steps, plans = news.steps, news.ended_plans
    seconds = [
        getattr(steps, name).sum() * _NANO for name in ("communicating", "exposed", "waiting")
    ]
    tensors = plans["tensors"].sum()
    return np.array([len(steps), len(plans), *seconds, steps.bytes.sum(), tensors], np.float64)


def _means(sums: Any) -> dict[str, float]:
    """Returns the values by name; NaN where there were no steps, or no plans."""
    steps, plans = (count or math.nan for count in sums[:2].tolist())
    counts = (steps, steps, steps, steps, plans)
    return {name: float(s / n) for name, s, n in zip(NAMES, sums[2:], counts, strict=True)}
