"""What `fit` writes into the record: epoch, step, loss, samples, waiting for input, callbacks."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping
from typing import Any

from tfring.keras import facts
from tfring.observe.recorder.own import own_calls, own_path
from tfring.observe.recorder.reader import RecordError, read_header
from tfring.observe.recorder.rounds import rounds_of
from tfring.observe.recorder.steps import steps_of
from tfring.observe.timeline import phases, session
from tfring.ops import library
from tfring.runtime import _native

# Counting samples and input takes some 0.1 ms, so that is done this often.
_EVERY_NANOSECONDS = 500_000_000


class _Totals:
    """Of this process, over all its fits; times in nanoseconds."""

    steps = 0
    samples = 0.0
    input = 0
    callbacks = 0


class Progress:
    """Notes how far one call of `fit` is, for `tfring top`, the report, metrics and TensorBoard.

    TensorFlow counts the waiting for input, in GetNext of tf.data iterators, through which Keras
    gets all data. The time of callbacks is that between two batches: from the first of tfring's
    callbacks after one batch to the last of them before the next. Callbacks of an epoch, and
    validation, count as neither.

    Attributes:
        times: seconds per step of the epoch that has ended: "step", "input", "callbacks",
            "exchange" and, as part of it, "waiting"; the last two only if the record has them.
    """

    def __init__(self, params: Mapping[str, Any] | None) -> None:
        params = params or {}
        self._epochs = int(params.get("epochs") or 0)
        self._steps = int(params.get("steps") or 0)
        self._last_step = 0
        self._epoch: int | None = None
        self._counted = math.inf  # samples of this epoch, at the last look; inf: not counting
        self._counter: int | None = None  # of TensorFlow, at the last look
        self._ended: int | None = None  # the batch before
        self._batch_began = 0
        self._epoch_ended = 0
        self._looked = 0
        self._loss: Any = None
        self._before = (0, 0, 0, 0)  # when the epoch began, and the totals then
        self._calls = 0
        self.times: dict[str, float] = {}

    def begin_epoch(self, epoch: int) -> None:
        """Begins an epoch, counted from 0."""
        if self._epoch is None and self._steps:
            self._last_step = _Totals.steps + (self._epochs - epoch) * self._steps
        if self._epoch is not None and (noted := session.phases()) is not None:
            now = time.monotonic_ns()
            noted.note(phases.AFTER_EPOCH, self._epoch + 1, self._epoch_ended, now)
        self._epoch, self._counted, self._ended = epoch, 0.0, None
        self._looked = 0  # the first batch tells that this epoch has begun
        self._counter = library.input_microseconds()
        self._before = _now()
        self._calls = _newest_call()
        self._batch_began = self._before[0]

    def begin_batch(self) -> None:
        """Notes when a batch begins; of tfring's callbacks, the last one that calls it counts."""
        self._batch_began = time.monotonic_ns()

    def end_batch(self, model: Any, batches: int, logs: Mapping[str, Any] | None) -> None:
        """Notes `batches` trained batches, once after each execution of the training function."""
        before, self._ended = self._ended, time.monotonic_ns()
        if before is not None:
            _Totals.callbacks += self._batch_began - before
        if (noted := session.phases()) is not None:
            self._note_phases(noted, before, self._ended)
        _Totals.steps += batches
        self._loss = (logs or {}).get("loss")
        if self._ended - self._looked < _EVERY_NANOSECONDS:
            _native.core.mark_step(_Totals.steps)
            return
        self._looked = self._ended
        self._note(model)

    def end_epoch(self, model: Any) -> None:
        """Notes the end after the last batch, before validation; a second call changes nothing."""
        if math.isfinite(self._counted):
            self._note(model)
            self._counted = math.inf
            self.times = self._times()
            self._epoch_ended = time.monotonic_ns()
            if self._epoch is not None and (noted := session.phases()) is not None:
                noted.note(phases.EPOCH, self._epoch + 1, self._before[0], self._epoch_ended)

    def input_nanoseconds(self) -> float:
        """Returns how long all fits of this process have waited for input; NaN: not known."""
        before, self._counter = self._counter, library.input_microseconds()
        if before is None or self._counter is None:
            return math.nan
        _Totals.input += (self._counter - before) * 1000
        return _Totals.input

    def _times(self) -> dict[str, float]:
        """Returns seconds per step of this epoch, by name; the exchange is that of its end."""
        names = ("step", "input", "callbacks")
        *spent, steps = (now - then for now, then in zip(_now(), self._before, strict=True))
        times = {name: one / max(1, steps) for name, one in zip(names, spent, strict=True)}
        own = own_calls(self._calls)
        if own is not None and len(rounds := rounds_of(steps_of(own))):
            times["exchange"] = float(rounds.sums(rounds.steps.exposed).mean())
            times["waiting"] = float(rounds.sums(rounds.steps.waiting).mean())
        return {name: round(one / 1e9, 9) for name, one in times.items()}

    def _note_phases(self, noted: phases.PhaseSource, before: int | None, ended: int) -> None:
        """Notes a step for the timeline; waiting for input is drawn where it begins."""
        step, began, waited = _Totals.steps + 1, self._batch_began, _Totals.input
        if before is not None:
            noted.note(phases.CALLBACKS, step - 1, before, began)
        noted.note(phases.STEP, step, began, ended)
        if self.input_nanoseconds() > waited:
            noted.note(phases.INPUT, step, began, min(ended, began + _Totals.input - waited))

    def _note(self, model: Any) -> None:
        tracker = facts.loss_tracker(model)
        count = 0.0 if tracker is None else facts.number(tracker.count)
        _Totals.samples += max(0.0, count - self._counted)
        self._counted = count
        known = not math.isnan(self.input_nanoseconds())
        _native.core.mark_step(
            _Totals.steps, round(_Totals.samples), _Totals.input if known else -1
        )
        loss = facts.loss_in({"loss": self._loss})
        epoch = 0 if self._epoch is None else self._epoch + 1
        _native.core.mark_fit(epoch, self._epochs, self._last_step, loss, _Totals.callbacks)


def _now() -> tuple[int, int, int, int]:
    return time.monotonic_ns(), _Totals.input, _Totals.callbacks, _Totals.steps


def _newest_call() -> int:
    """Returns the number of the newest call in this rank's record; 0: there is none."""
    path = own_path()
    with contextlib.suppress(OSError, RecordError):
        return 0 if path is None else int(read_header(path)["calls"])
    return 0
