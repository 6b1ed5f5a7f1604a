"""Rounds of several optimizers, in calls with known times."""

from __future__ import annotations

from typing import Any

import numpy as np
from made_records import entries, gradient_name

from tfring.observe.recorder import layout
from tfring.observe.recorder.rounds import Rounds, rounds_of
from tfring.observe.recorder.steps import steps_of


def call(step: int, at: int, optimizer: int = 0, **more: Any) -> dict[str, Any]:
    """A bucket that is ready at a time, and reduced from 1 to 3 later."""
    times = {"submitted": at, "planned": at + 1, "ended": at + 3}
    name, flags = gradient_name(optimizer=optimizer), int(layout.CallFlags.BUCKET)
    return {"name": name, "invocation": step, "flags": flags, "bytes": 1, **times, **more}


def rounds(rows: list[dict[str, Any]]) -> Rounds:
    return rounds_of(steps_of(entries(layout.CALL, rows)))


def test_two_optimizers_in_turn() -> None:
    """Waiting for the gradients of either is no work."""
    rows = [call(n, 100 * n + 40 * which, which) for n in range(1, 6) for which in (0, 1)]
    found = rounds(rows)
    assert found.series == (0, "tfring.optimizer.1.0")
    assert found.number.tolist() == [2, 3, 4, 5]
    assert set((found.end - found.began).tolist()) == {100}
    assert set(found.own.tolist()) == {94}
    assert found.sums(found.steps.bytes).tolist() == [2, 2, 2, 2]
    assert found.largest(found.steps.ready).tolist() == [1, 3, 5, 7]
    some = found.take(found.number != 3)
    assert (some.number.tolist(), some.own.tolist()) == ([2, 4, 5], [94] * 3)
    assert some.steps.number.tolist() == [2, 2, 4, 4, 5, 5]


def test_one_that_is_used_more_seldom() -> None:
    rows = [call(n, 100 * n) for n in range(1, 31)]
    rows += [call(n, 500 * n + 50, optimizer=1) for n in range(1, 6)]
    found = rounds(rows)
    assert found.number.tolist() == list(range(2, 31))
    own = {number: int(own) for number, own in zip(found.number, found.own, strict=True)}
    assert {n for n in own if own[n] == 94} == {6, 11, 16, 21, 26}
    assert set(own.values()) == {94, 97}


def test_steps_that_are_reduced_at_the_same_time() -> None:
    """Each nanosecond is waited for once, whichever ends first."""
    rows = []
    for n in range(1, 5):
        rows += [call(n, 100 * n, 1), call(n, 100 * n, 0, ended=100 * n + 3 + n % 2)]
    found = rounds(rows)
    assert found.number.tolist() == [2, 3, 4]
    assert found.sums(found.steps.bytes).tolist() == [2, 2, 2]
    assert np.all(found.own <= 97) and np.all(found.own >= 96)


def test_without_steps_there_are_no_rounds() -> None:
    for rows in ([], [call(1, 10)], [call(1, 10), call(2, 20, status=3)]):
        found = rounds(rows)
        assert len(found) == 0 and found.own.tolist() == []
        assert found.sums(found.steps.bytes).tolist() == found.number.tolist() == []
