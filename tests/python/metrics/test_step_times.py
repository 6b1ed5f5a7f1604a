"""Where the time of a step went, from calls with known times; what is new in a record."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfring.metrics.step_times import StepTimes, new_steps, newest_step
from tfring.recorder import layout

BUCKET = int(layout.CallFlags.BUCKET)


def made(*rows: dict[str, int]) -> np.ndarray[Any, Any]:
    """Calls of buckets with the given fields, numbered in this order."""
    calls = np.zeros(len(rows), dtype=layout.CALL)
    calls["flags"] = BUCKET
    for number, row in enumerate(rows, start=1):
        calls[number - 1]["number"] = number
        for field, value in row.items():
            calls[number - 1][field] = value
    return calls


def call(step: int, submitted: int, planned: int, ended: int, **more: int) -> dict[str, int]:
    times = {"submitted": submitted, "planned": planned, "ended": ended}
    return {"invocation": step, "bytes": 10, **times, **more}


def test_times_of_a_step() -> None:
    """Buckets run 110 to 140 and 130 to 150, then 180 to 200; nothing is computed from 145 on."""
    calls = made(
        call(1, 100, 110, 140), call(1, 120, 130, 150), call(1, 145, 180, 200), call(2, 300, 0, 0)
    )
    seen: dict[int, int] = {}
    expected = StepTimes(
        process_set=0,
        number=1,
        begin=100,
        last_ready=145,
        end=200,
        communication=60,
        waiting=30,
        bytes=30,
    )
    assert new_steps(calls, seen, all_are_over=False) == [expected]
    assert expected.exposed == 55
    assert newest_step(calls) == 2
    assert new_steps(calls, seen, all_are_over=True) == []  # the second has not ended
    calls["ended"][3] = 310
    assert [step.number for step in new_steps(calls, seen, all_are_over=True)] == [2]
    assert new_steps(calls, seen, all_are_over=True) == []


def test_a_hidden_step_has_no_exposed_time() -> None:
    """The last bucket to be ready may be the first to end."""
    calls = made(call(1, 100, 101, 102), call(1, 103, 104, 105), call(2, 200, 0, 0))
    (step,) = new_steps(calls, {}, all_are_over=False)
    assert (step.exposed, step.waiting, step.communication) == (2, 1, 2)


def test_a_step_that_was_partly_overwritten_is_left_out() -> None:
    calls = made(call(7, 1, 1, 2), *(call(step, 3, 3, 4) for step in (8, 8, 9, 9, 10, 10)))
    steps = new_steps(calls, {}, all_are_over=False)
    assert [step.number for step in steps] == [8, 9]


def test_other_calls_and_process_sets_are_kept_apart() -> None:
    own = [call(step, step, step, step + 1, process_set=3) for step in (1, 2, 3)]
    other = {**call(9, 1, 1, 2), "flags": 0}
    calls = made(other, call(1, 5, 6, 7), *own)
    seen: dict[int, int] = {}
    steps = new_steps(calls, seen, all_are_over=False)
    assert [(step.process_set, step.number) for step in steps] == [(3, 1), (3, 2)]
    assert seen == {3: 2}
