"""What `fit` writes of itself into the record: epoch, step, loss, samples, input and callbacks."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from tfring import _native
from tfring.keras2 import facts
from tfring.ops import library

# Counting samples and input takes some 0.1 ms, so that is done this often.
_EVERY_NANOSECONDS = 500_000_000


class _Totals:
    """Of this process, over all its fits; times in nanoseconds."""

    steps = 0
    samples = 0.0
    input = 0
    callbacks = 0


class Progress:
    """Notes how far one call of `fit` is, for `tfring top`, the report and the metrics.

    Waiting for input is what TensorFlow counts in GetNext of tf.data iterators, through which Keras
    gets all data. The time of callbacks is that between two batches: from the first of tfring's
    callbacks after one batch to the last of them before the next. Callbacks of an epoch, and
    validation, count for neither.
    """

    def __init__(self, params: Mapping[str, Any] | None) -> None:
        """Begins.

        Args:
            params: What Keras gives to all callbacks of one `fit`.
        """
        params = params or {}
        self._epochs = int(params.get("epochs") or 0)
        self._steps = int(params.get("steps") or 0)
        self._last_step = 0
        self._epoch: int | None = None
        self._counted = math.inf  # samples of this epoch, at the last look; inf: not counting
        self._counter: int | None = None  # of TensorFlow, at the last look
        self._ended: int | None = None  # the batch before
        self._between = 0
        self._looked = 0
        self._loss: Any = None

    def begin_epoch(self, epoch: int) -> None:
        """Is called when an epoch begins, counted from 0."""
        if self._epoch is None and self._steps:
            self._last_step = _Totals.steps + (self._epochs - epoch) * self._steps
        self._epoch, self._counted, self._ended = epoch, 0.0, None
        self._counter = library.input_microseconds()

    def begin_batch(self) -> None:
        """Is called before a batch by each of tfring's callbacks; the last one counts."""
        if self._ended is not None:
            self._between = time.monotonic_ns() - self._ended

    def end_batch(self, model: Any, batches: int, logs: Mapping[str, Any] | None) -> None:
        """Is called once after each execution of the training function.

        Args:
            model: What is trained.
            batches: How many it has trained on.
            logs: Of Keras.
        """
        self._ended = time.monotonic_ns()
        _Totals.steps += batches
        _Totals.callbacks += self._between
        self._between = 0
        self._loss = (logs or {}).get("loss")
        if self._ended - self._looked < _EVERY_NANOSECONDS:
            _native.core.mark_step(_Totals.steps)
            return
        self._looked = self._ended
        self._note(model)

    def end_epoch(self, model: Any) -> None:
        """Is called after the last batch of an epoch, before validation; again does no harm."""
        if math.isfinite(self._counted):
            self._note(model)
            self._counted = math.inf

    def input_nanoseconds(self) -> float:
        """Returns what all fits of this process have waited for input so far; NaN: not known."""
        before, self._counter = self._counter, library.input_microseconds()
        if before is None or self._counter is None:
            return math.nan
        _Totals.input += (self._counter - before) * 1000
        return _Totals.input

    def _note(self, model: Any) -> None:
        tracker = facts.loss_tracker(model)
        count = 0.0 if tracker is None else facts.number(tracker.count)
        _Totals.samples += max(0.0, count - self._counted)
        self._counted = count
        known = not math.isnan(self.input_nanoseconds())
        _native.core.mark_step(
            _Totals.steps, round(_Totals.samples), _Totals.input if known else -1
        )
        loss = None if self._loss is None else facts.number(self._loss)
        epoch = 0 if self._epoch is None else self._epoch + 1
        _native.core.mark_fit(epoch, self._epochs, self._last_step, loss, _Totals.callbacks)
