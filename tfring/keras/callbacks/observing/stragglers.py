"""StragglerCallback: which rank has become slow, since which step, by how much, and in what."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import numpy as np

from tfring.keras.callbacks.base import DistributedCallback
from tfring.observe.recorder.gradients import Array, Series
from tfring.observe.recorder.own import own_calls
from tfring.observe.recorder.rounds import rounds_of
from tfring.observe.recorder.steps import steps_of
from tfring.observe.report.slowdowns import SlowdownMonitor
from tfring.runtime import _native, topology
from tfring.runtime.exceptions import tf_errors

_log = logging.getLogger("tfring")
# Rank, step, nanoseconds of own work, of these for input, of the whole step, and the plan by which
# all ranks know the step.
_COLUMNS = 6


class StragglerCallback(DistributedCallback):
    """Logs on rank 0 which rank has become slow, and in what.

    Every `every` steps the ranks exchange, from their records, how long each of them has worked by
    itself in each step, and how long tf.data kept it waiting. Rank 0 compares each rank with its
    own past and with the others. Only a change that lasts counts
    (tfring/observe/report/slowdowns.py): steps may be uneven. Needs the same `every` on all ranks.
    """

    def __init__(self, every: int = 10) -> None:
        """Sets how often to look.

        Args:
            every: steps between two looks. Each takes a fraction of a millisecond, on rank 0 one
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
        self._steps = 0  # of this epoch
        self._waited = 0.0  # for input, until the last look; nanoseconds

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        super().on_train_begin(logs)
        calls = own_calls(0)
        self._own = None if calls is None else OwnSteps(calls)
        if calls is None and topology.rank() == 0:
            _log.warning(
                "StragglerCallback does nothing: it needs the record, which rank 0 does not keep "
                "because of TFRING_RECORD=0, or because its folder cannot be written"
            )

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_begin(epoch, logs)
        self._steps = 0
        self._waited = self.fit.progress.input_nanoseconds()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_train_batch_end(batch, logs)
        before, self._steps = self._steps, batch + 1
        if self._steps // self.every > before // self.every:
            self._look()

    def _look(self) -> None:
        """Exchanges the steps since the last look; a collective."""
        waited = self.fit.progress.input_nanoseconds()
        spent, self._waited = waited - self._waited, waited
        mine = np.zeros((0, _COLUMNS))
        if self._own is not None:
            mine = self._own.take()
            mine[:, 3] = spent / max(1, len(mine))
        with tf_errors():
            _native.note_call_site()
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
            text = dataclasses.replace(found, rank=ranks[found.rank]).text()
            _log.warning(text)
            _native.core.mark(text)


class OwnSteps:
    """The steps of this rank, each handed out once.

    Args:
        known: The calls of this process so far, which are left out.
    """

    def __init__(self, known: Array) -> None:
        self._after = int(known["number"].max(initial=0))
        self._series: Series | None = None
        self._last = 0

    def take(self) -> Array:
        """Returns a row, with _COLUMNS, for each step that has ended since the last call.

        With several optimizers it is one for each round (tfring/observe/recorder/rounds.py).
        """
        calls = own_calls(self._after)
        if calls is None or len(rounds := rounds_of(steps_of(calls))) == 0:
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
