"""CommunicationMetricsCallback: how much of a step is communication."""

from __future__ import annotations

import logging
import math
from typing import Any

import keras

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


class CommunicationMetricsCallback(Keras2Callback, keras.callbacks.Callback):  # type: ignore[misc]
    """Adds to an epoch's logs what its steps spent in communication on this rank.

    - `comm_seconds`: per step, the time with at least one bucket of gradients under way.
    - `comm_exposed_seconds`: per step, the time from the last gradient until all were reduced:
      what the communication costs, since nothing was left to compute.
    - `comm_waiting_seconds`: of that, the time in which other ranks had not asked for a bucket yet.
      The rank that the others wait for is the one with the smallest value.
    - `comm_bytes`: per step, the bytes of the gradients.
    - `comm_tensors_per_plan`: how many tensors ran together, over all collectives of the epoch.

    Put it before callbacks that read logs: keras.callbacks.TensorBoard and CSVLogger write them,
    and MetricAverageCallback makes them means over the ranks. They come from the record, which
    keeps the last 8,192 calls: of a longer epoch, they are means over the last steps. A value is
    NaN where nothing is known: there is no record (TFRING_RECORD=0), or no step has reduced
    gradients. The callback runs no collective, so it may be on some ranks only.
    """

    def __init__(self, log_dir: Any = None, update_freq: str | int = "epoch") -> None:
        """Sets where the values go besides the logs.

        Args:
            log_dir: folder for TensorBoard's event files, in which each rank has one of its own,
                rank-0 and so on; None: the values are in the logs only.
            update_freq: "epoch" writes the event files after each epoch, a number after so many
                batches. The logs have the means of the epoch in any case.

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
        self._epoch, self._part = _Sums(), _Sums()  # since its begin, and since the last writing

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
        self._epoch, self._part = _Sums(), _Sums()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        # One execution of the train function may be several batches.
        before, self._batches = self._batches, self._earlier + batch + 1
        if self._every and self._batches // self._every > before // self._every:
            self._look()
            self._write(self._part.means(), self._batches)
            self._part = _Sums()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._look()
        means = self._epoch.means()
        if logs is not None:
            logs.update(means)
        if not self._every:
            self._write(means, epoch)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._follower = None
        if self._files is not None:
            self._files.close()

    def _look(self) -> None:
        """Adds the steps that are over: between two batches all that have begun are."""
        if self._follower is None:
            return
        try:
            news = self._follower.look(all_are_over=True)
        except (OSError, ValueError) as error:
            _log.warning("CommunicationMetricsCallback cannot read the record any more: %s", error)
            self._follower = None
            return
        self._epoch.add(news)
        self._part.add(news)

    def _write(self, means: dict[str, float], step: int) -> None:
        if self._files is not None:
            self._files.write(topology.rank(), means, step)


class _Sums:
    """Sums over steps and plans."""

    def __init__(self) -> None:
        self._steps = self._communication = self._exposed = self._waiting = self._bytes = 0
        self._plans = self._tensors = 0

    def add(self, news: News) -> None:
        """Adds what is new."""
        steps = news.steps
        self._steps += len(steps)
        self._communication += int(steps.communicating.sum())
        self._exposed += int(steps.exposed.sum())
        self._waiting += int(steps.waiting.sum())
        self._bytes += int(steps.bytes.sum())
        self._plans += len(news.ended_plans)
        self._tensors += int(news.ended_plans["tensors"].sum())

    def means(self) -> dict[str, float]:
        """Returns the values by name."""
        steps, plans = self._steps or math.nan, self._plans or math.nan
        values = (
            self._communication * _NANO / steps,
            self._exposed * _NANO / steps,
            self._waiting * _NANO / steps,
            self._bytes / steps,
            self._tensors / plans,
        )
        return dict(zip(NAMES, values, strict=True))
