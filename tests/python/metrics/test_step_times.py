"""Where the time of a step went, from calls with known times; what is new in a record."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfring.metrics.step_times import Series, StepTimes, new_steps
from tfring.recorder import layout

BUCKET = int(layout.CallFlags.BUCKET)


def made(*rows: dict[str, int]) -> np.ndarray[Any, Any]:
    """Calls of buckets with the given fields, numbered in this order."""
    calls = np.zeros(len(rows), dtype=layout.CALL)
    calls["flags"], calls["name"] = BUCKET, b"g.0"
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
    seen: dict[Series, int] = {}
    expected = StepTimes(
        series=(0, "g"),
        number=1,
        begin=100,
        last_ready=145,
        end=200,
        communication=60,
        waiting=30,
        bytes=30,
    )
    assert new_steps(calls, seen, all_are_over=False) == ([expected], 2)
    assert expected.exposed == 55
    assert new_steps(calls, seen, all_are_over=True) == ([], 2)  # the second has not ended
    calls["ended"][3] = 310
    assert [step.number for step in new_steps(calls, seen, all_are_over=True)[0]] == [2]
    assert new_steps(calls, seen, all_are_over=True) == ([], 2)


def test_a_hidden_step_has_no_exposed_time() -> None:
    """The last bucket to be ready may be the first to end."""
    calls = made(call(1, 100, 101, 102), call(1, 103, 104, 105), call(2, 200, 0, 0))
    [step], _ = new_steps(calls, {}, all_are_over=False)
    assert (step.exposed, step.waiting, step.communication) == (2, 1, 2)


def test_a_step_that_was_partly_overwritten_is_left_out() -> None:
    calls = made(call(7, 1, 1, 2), *(call(step, 3, 3, 4) for step in (8, 8, 9, 9, 10, 10)))
    steps, begun = new_steps(calls, {}, all_are_over=False)
    assert ([step.number for step in steps], begun) == ([8, 9], 10)


def test_other_calls_process_sets_and_optimizers_are_kept_apart() -> None:
    own = [call(step, step, step, step + 1, process_set=3) for step in (1, 2, 3)]
    other = {**call(9, 1, 1, 2), "flags": 0}
    second = [call(step, step, step, step + 1) for step in (1, 2)]
    calls = made(other, call(1, 5, 6, 7), *own, *second)
    calls["name"][-2:] = b"h.1.0", b"h.1.0.bfloat16"
    seen: dict[Series, int] = {}
    steps, begun = new_steps(calls, seen, all_are_over=False)
    assert [(step.series, step.number) for step in steps] == [
        *(((3, "g"), 1), ((3, "g"), 2), ((0, "h.1"), 1))
    ]
    assert begun == 1 + 3 + 2
    assert seen == {(3, "g"): 2, (0, "h.1"): 1}


def test_names_without_a_function_and_of_other_values() -> None:
    """Eager calls have a number in their name; flags of mixed precision are no gradients."""
    rows = [call(1, step, step, step + 1) for step in (1, 2, 3, 4)]
    calls = made(*rows)
    calls["name"] = [
        *(b"tfring.tape.eager.gradient.4.0", b"tfring.tape.eager.gradient.5.0"),
        *(b"tfring.optimizer.0.finite.0", b"tfring.optimizer.0.0.0.sparse.values"),
    ]
    steps, begun = new_steps(calls, {}, all_are_over=True)
    assert [(step.series[1], step.number) for step in steps] == [
        *(("tfring.tape.eager.gradient", 5), ("tfring.tape.eager.gradient", 6)),
        ("tfring.optimizer.0.0", 1),
    ]
    assert begun == 6 + 1
