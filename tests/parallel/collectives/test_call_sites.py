"""Calls without a name: their own line is compared between ranks, the lines around it are not."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

import tfring as hvd


def mean(value: float) -> Any:
    return hvd.allreduce(value)


def test_calls_on_different_lines_are_refused(several: int) -> None:
    with pytest.raises(tf.errors.FailedPreconditionError, match="the line of the program"):
        if hvd.rank() == 0:
            hvd.allreduce(1.0)
        else:
            hvd.allreduce(1.0)


def test_a_helper_may_be_called_from_different_lines() -> None:
    """A branch on the rank around a helper is right, and looks like a call too many."""
    total = float(sum(range(hvd.size())))
    if hvd.rank() == 0:  # noqa: SIM108, two lines are the point
        shown = float(mean(0.0))
    else:
        shown = float(mean(float(hvd.rank())))
    assert shown == pytest.approx(total / hvd.size())


def test_a_helper_that_passes_a_name_on_tells_its_callers_apart(several: int) -> None:
    """What the documentation advises: names that differ wait, and are reported as a stall."""

    def named(value: float, name: str) -> Any:
        return hvd.allreduce(value, op=hvd.Sum, name=name)

    loss, accuracy = named(1.0, "loss"), named(2.0, "accuracy")
    assert (float(loss), float(accuracy)) == (float(several), 2.0 * several)
