"""StragglerCallback: which rank has become slow, since which step, by how much, and in what."""

from __future__ import annotations

import logging
import time
from typing import Any

import numpy as np

from tfring import _native, topology
from tfring.exceptions import tf_errors
from tfring.keras.callbacks.base import DistributedCallback
from tfring.keras2 import facts
from tfring.ops import library
from tfring.recorder.gradients import Array, Series
from tfring.recorder.own import OwnCalls, open_own
from tfring.recorder.rounds import rounds_of
from tfring.recorder.steps import steps_of
from tfring.report.monitor import SlowdownMonitor

_log = logging.getLogger("tfring")
# Rank, step, nanoseconds of own work, of these for input, of the whole step, and the plan by which
# all ranks know the step.
_COLUMNS = 6


class StragglerCallback(DistributedCallback):
    """Logs on rank 0 which rank has become slow, and in what.

    Every `every` steps the ranks exchange how long each of them has worked by itself in each step,
    without waiting for others, as their records have it, and for how long tf.data and the rest of
    the input kept them waiting. Rank 0 compares each rank with what it was before and with the
    others. What counts is a change that lasts (tfring/report/changes.py): steps may be as uneven as
    they like. Also writes steps, samples and time spent on input into the record, for `tfring top`
    and `tfring report`. Needs the same `every` on all ranks.
    """

    def __init__(self, every: int = 10) -> None:
        """Sets how often to look.

        Args:
            every: Steps between two looks; each takes a fraction of a millisecond, on rank 0 one
                for twenty ranks, and a collective of 48 bytes per step and rank.

        Raises:
            ValueError: `every` is less than 1.
        """
        super().__init__()
        if every < 1:
            raise ValueError(f"StragglerCallback needs every >= 1, not {every}")
        self.every = every
        self._own: OwnSteps | None = None
        self._ranks: tuple[int, ...] = ()
        self._monitor: SlowdownMonitor | None = None
        self._last = 0  # the newest step that the monitor has
        self._steps = self._before = 0  # of this epoch; of those before
        self._samples = 0.0
        self._counted = 0.0  # of the epoch, at the last look
        self._input = InputTime()

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """As in keras.callbacks.Callback."""
        super().on_train_begin(logs)
        calls = open_own()
        self._own = None if calls is None else OwnSteps(calls)
        if calls is None and topology.rank() == 0:
            _log.warning(
                "StragglerCallback does nothing: it needs the record, which rank 0 does not keep "
                "because of TFRING_RECORD=0, or because its folder cannot be written"
            )

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """As in keras.callbacks.Callback."""
        super().on_epoch_begin(epoch, logs)
        self._before += self._steps
        self._steps, self._counted = 0, 0.0
        self._input.restart()

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """As in keras.callbacks.Callback."""
        self._input.batch_begins()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """As in keras.callbacks.Callback."""
        super().on_train_batch_end(batch, logs)
        before, self._steps = self._steps, batch + 1
        looks = self._steps // self.every > before // self.every
        if looks:
            self._look()
        spent, samples = (self._input.total, round(self._samples)) if looks else (-1, -1)
        _native.core.mark_step(self._before + self._steps, samples, spent)
        self._input.batch_ends()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """As in keras.callbacks.Callback."""
        self._count_samples()  # validation counts anew

    def _count_samples(self) -> None:
        tracker = facts.loss_tracker(self.model)
        count = 0.0 if tracker is None else facts.number(tracker.count)
        self._samples += max(0.0, count - self._counted)
        self._counted = count

    def _look(self) -> None:
        """Exchanges the steps since the last look; a collective."""
        self._count_samples()
        spent = self._input.take()
        mine = np.zeros((0, _COLUMNS))
        if self._own is not None:
            mine = self._own.take()
            mine[:, 3] = spent / max(1, len(mine))
        with tf_errors():
            rows = _native.core.allgather(mine, name="tfring.stragglers")
        if topology.rank() == 0 and len(rows):
            self._check(rows)

    def _check(self, rows: Array) -> None:
        ranks = tuple(sorted({int(rank) for rank in rows[:, 0]}))
        by_rank = [rows[rows[:, 0] == rank] for rank in ranks]
        plans = by_rank[0][:, 5]
        for each in by_rank[1:]:
            plans = np.intersect1d(plans, each[:, 5])
        if len(plans) == 0:
            return
        by_rank = [each[np.isin(each[:, 5], plans)] for each in by_rank]
        numbers = by_rank[0][:, 1]
        # Another model counts from 1 on, and ranks that have joined send nothing.
        if self._monitor is None or ranks != self._ranks or numbers[0] <= self._last:
            self._monitor, self._ranks = SlowdownMonitor(len(ranks)), ranks
        self._last = int(numbers[-1])
        own, inputs, total = (
            np.array([each[:, column] for each in by_rank]) for column in (2, 3, 4)
        )
        for found in self._monitor.add(numbers.astype(np.int64), own, inputs, total.mean(axis=0)):
            text = found.text(ranks)
            _log.warning(text)
            _native.core.mark(text)


class OwnSteps:
    """The steps of this rank, each handed out once."""

    def __init__(self, calls: OwnCalls) -> None:
        """Begins with what is in the record from now on.

        Args:
            calls: Of this process.
        """
        self._calls = calls
        self._after = int(max(calls.newer_than(0)["number"], default=0))
        self._series: Series | None = None
        self._last = 0

    def take(self) -> Array:
        """Returns a row for each step that has ended since the last time, with _COLUMNS.

        Where there are several optimizers, for each round of theirs: tfring/recorder/rounds.py.
        """
        calls = self._calls.newer_than(self._after)
        rounds = rounds_of(steps_of(calls))
        if len(rounds) == 0:
            return np.zeros((0, _COLUMNS))
        if rounds.series != self._series:
            self._series, self._last = rounds.series, 0  # of another model
        new = rounds.take(rounds.number > self._last)
        self._last = int(rounds.number[-1])
        # The end of the last step is the beginning of the next one.
        self._after = int(rounds.steps.call[rounds.last[-1]]) - 1
        rank = np.full(len(new), topology.rank())
        columns = (rank, new.number, new.own, new.own * 0, new.end - new.began, new.plan)
        return np.stack(columns, axis=1).astype(np.float64)


class InputTime:
    """For how long this process has waited for input, in nanoseconds.

    That is the time between two batches, and the time for which a training step waited in tf.data:
    Keras gets batches within its training function.
    """

    def __init__(self) -> None:
        """Begins to count."""
        self.total = 0
        self._between = 0
        self._ended: int | None = None
        self._counter: int | None = None

    def restart(self) -> None:
        """Is called when an epoch begins: validation and callbacks before it do not count."""
        self._ended = None
        self._counter = library.input_microseconds()

    def batch_begins(self) -> None:
        """Is called before each batch."""
        if self._ended is not None:
            self._between += time.monotonic_ns() - self._ended

    def batch_ends(self) -> None:
        """Is called after each batch."""
        self._ended = time.monotonic_ns()

    def take(self) -> float:
        """Returns the time since the last call or restart; NaN: not known."""
        before, self._counter = self._counter, library.input_microseconds()
        between, self._between = self._between, 0
        self.total += between
        if before is None or self._counter is None:
            return float("nan")
        spent = between + (self._counter - before) * 1000
        self.total += spent - between
        return float(spent)
