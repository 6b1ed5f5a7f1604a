"""Steps in calls with known times: their calls, their time, and new ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from made_records import entries, gradient_name

from tfring.observe.recorder import layout
from tfring.observe.recorder.gradients import Series, find_gradient_calls
from tfring.observe.recorder.steps import Steps, align_steps, steps_of, take_new_steps

BUCKET = int(layout.CallFlags.BUCKET)
FIRST, SECOND = (0, "tfring.optimizer.0.0"), (0, "tfring.optimizer.1.0")


def made(*rows: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Calls of buckets with the given fields, numbered in this order."""
    return entries(layout.CALL, [{"flags": BUCKET, "name": gradient_name(), **row} for row in rows])


def call(step: int, submitted: int, planned: int, ended: int, **more: Any) -> dict[str, Any]:
    times = {"submitted": submitted, "planned": planned, "ended": ended}
    return {"invocation": step, "bytes": 10, **times, **more}


def fast(step: int, at: int, **more: Any) -> dict[str, Any]:
    return call(step, at, at, at + 1, **more)


def of(steps: Steps) -> list[tuple[Series, int]]:
    names = [steps.names[at] for at in steps.series.tolist()]
    return list(zip(names, steps.number.tolist(), strict=True))


def test_times_of_a_step() -> None:
    """Buckets run 110 to 140 and 130 to 150, then 180 to 200; nothing is computed from 145 on."""
    calls = made(
        call(1, 100, 110, 140), call(1, 120, 130, 150), call(1, 145, 180, 200), call(2, 300, 0, 0)
    )
    seen: dict[Series, int] = {}
    steps, begun = take_new_steps(calls, seen, all_are_over=False)
    assert (of(steps), begun) == ([(FIRST, 1)], 2)
    expected = {"began": 0, "first": 100, "ready": 145, "end": 200, "exposed": 55}
    expected |= {"communicating": 60, "waiting": 30, "bytes": 30, "buckets": 3}
    assert {name: getattr(steps, name).tolist() for name in expected} == {
        name: [value] for name, value in expected.items()
    }
    steps, begun = take_new_steps(calls, seen, all_are_over=True)
    assert (len(steps), begun) == (0, 2)  # the second has not ended
    calls["ended"][3] = 310
    steps, _ = take_new_steps(calls, seen, all_are_over=True)
    assert (steps.number.tolist(), steps.began.tolist()) == ([2], [200])
    steps, begun = take_new_steps(calls, seen, all_are_over=True)
    assert (len(steps), begun) == (0, 2)


def test_a_hidden_step_has_no_exposed_time() -> None:
    """The last bucket to be ready may be the first to end."""
    calls = made(call(1, 100, 101, 102), call(1, 103, 104, 105), call(2, 200, 0, 0))
    steps, _ = take_new_steps(calls, {}, all_are_over=False)
    assert (steps.exposed, steps.waiting, steps.communicating) == (2, 1, 2)


def test_a_call_that_failed_without_a_plan_was_not_under_way() -> None:
    steps = steps_of(made(call(1, 1, 0, 40, status=10), call(1, 2, 10, 20), call(1, 3, 15, 30)))
    assert (steps.communicating.tolist(), steps.waiting.tolist()) == ([20], [17])


def test_buckets_of_steps_that_run_at_the_same_time_count_in_each() -> None:
    other = {"name": gradient_name(optimizer=1)}
    steps = steps_of(made(call(1, 1, 10, 20), call(1, 2, 12, 30, **other)))
    assert steps.communicating.tolist() == [10, 18]


def test_a_step_that_was_partly_overwritten_is_left_out() -> None:
    calls = made(call(7, 1, 1, 2), *(call(step, 3, 3, 4) for step in (8, 8, 9, 9, 10, 10)))
    steps, begun = take_new_steps(calls, {}, all_are_over=False)
    assert (steps.number.tolist(), begun) == ([8, 9], 10)
    assert steps.began.tolist() == [2, 4]


def test_the_newest_step_has_not_ended_before_its_last_bucket_came() -> None:
    calls = made(*(fast(step, 10 * step + b) for step in (1, 2, 3) for b in (0, 1)))[:-1]
    assert steps_of(calls).end.tolist() == [12, 22, 0]
    assert steps_of(calls, all_are_over=True).end.tolist() == [12, 22, 31]


def test_a_step_is_not_new_before_older_ones_are_over() -> None:
    calls = made(fast(1, 10), call(2, 20, 20, 0), fast(3, 30), fast(4, 40))
    seen: dict[Series, int] = {}
    assert of(take_new_steps(calls, seen, all_are_over=True)[0]) == [(FIRST, 1)]
    calls["ended"][1] = 50
    assert of(take_new_steps(calls, seen, all_are_over=True)[0]) == [(FIRST, n) for n in (2, 3, 4)]


def test_failed_steps_and_steps_that_have_not_ended_are_not_good() -> None:
    calls = made(fast(1, 10), fast(2, 20, status=10), fast(3, 30), call(4, 40, 41, 0))
    assert steps_of(calls).number.tolist() == [1, 2, 3, 4]
    good = steps_of(calls).good()
    assert (good.number.tolist(), good.began.tolist()) == ([1, 3], [0, 21])


def test_rank_0_knows_who_asked_last_for_the_last_bucket() -> None:
    asked = {"second_last_asked": 5, "last_asked": 9, "last_rank": 3}
    calls = made(fast(1, 10, **asked), fast(1, 11), fast(2, 20))
    steps = steps_of(calls)
    assert (steps.asked[0], steps.asked_before[0], steps.last_rank[0]) == (9, 5, 3)
    assert (steps.asked[1], steps.asked_before[1], steps.last_rank[1]) == (0, 0, -1)


def test_other_calls_process_sets_and_optimizers_are_kept_apart() -> None:
    own = [fast(step, step, process_set=3) for step in (1, 2, 3)]
    other = {**fast(9, 1), "flags": 0}
    second = [fast(step, step, name=gradient_name(optimizer=1)) for step in (1, 2)]
    second[1]["name"] += ".bfloat16"
    seen: dict[Series, int] = {}
    steps, begun = take_new_steps(made(other, fast(1, 5), *own, *second), seen, all_are_over=False)
    third = (3, FIRST[1])
    assert of(steps) == [(SECOND, 1), (third, 1), (third, 2)]
    assert begun == 1 + 3 + 2
    assert seen == {third: 2, SECOND: 1}


def test_what_compares_layouts_or_is_reduced_besides_reduces_no_gradients() -> None:
    names = [
        "eager.broadcast_.0.layout",
        "broadcast_.layout",
        "train.grouped_allreduce.0",
        "tfring.optimizer.0.finite.0",
        "tfring.optimizer.0.0.scale.0",
        "tfring.optimizer.mine.0.overwrite.2",
        "tfring.stragglers",
    ]
    assert len(steps_of(made(*(fast(1, 1, name=name) for name in names)))) == 0
    broadcast = {"kind": layout.KINDS.index("broadcast")}
    assert len(steps_of(made(fast(1, 1, **broadcast)))) == 0


def test_gradients_that_are_scattered_have_no_flag() -> None:
    """With shard_states=True the call with the flag is about other values."""
    scattered = {"kind": layout.KINDS.index("reducescatter"), "flags": 0}
    whole = {"name": f"{gradient_name()}.whole"}
    steps = steps_of(made(call(1, 10, 12, 20, **scattered), call(1, 11, 13, 15, **whole)))
    assert (steps.ready.tolist(), steps.end.tolist(), steps.buckets.tolist()) == ([10], [20], [2])
    of_user = {**scattered, "name": "scattered.0"}
    assert len(steps_of(made(call(1, 10, 12, 20, **of_user)))) == 0


def test_names_of_reductions() -> None:
    """Names that users give may have dots and numbers; long ones were cut in the middle."""
    names = {
        "tfring.optimizer.my.net.2.0.13": "tfring.optimizer.my.net.2.0",
        "tfring.keras2_optimizer.0.1.0.sparse": "tfring.keras2_optimizer.0.1",
        "tfring.tf1_optimizer.adam.5.float16": "tfring.tf1_optimizer.adam",
        "tfring.tape.train_step.set2.gradient.1.0": "tfring.tape.train_step.set2.gradient.1",
        "tfring.tape.a_lo...ng_name.gradient.0.3": "tfring.tape.a_lo...ng_name.gradient.0",
        "tfring.aggregation.helper.0": "tfring.aggregation.helper",
    }
    steps = steps_of(made(*(fast(1, 1, name=name) for name in names)))
    assert [series for _, series in steps.names] == sorted(names.values())


EAGER = "tfring.tape.eager.gradient"


def eager(first: int, count: int) -> list[dict[str, Any]]:
    """Reductions of two buckets with names that take turns, from one on that has this number."""
    return [
        fast((n - 1) // 16 + 1, 10 * n + b, name=f"{EAGER}.{(n - 1) % 16}.{b}", number=10 * n + b)
        for n in range(first, first + count)
        for b in range(2)
    ]


def test_eager_reductions_are_counted_on_through_all_names() -> None:
    for first, count in ((1, 40), (7, 40), (45, 4), (16, 1)):
        steps = steps_of(made(*eager(first, count)))
        assert of(steps) == [((0, EAGER), n) for n in range(first, first + count)]
        assert steps.began[1:].tolist() == steps.end[:-1].tolist()


def test_eager_reductions_are_counted_on_where_names_begin_with_0_again() -> None:
    """As they do when the ranks have joined: here after each five reductions."""
    rows = [
        fast(n // 5 + 1, 10 * n + 1, name=f"{EAGER}.{n % 5}.0", number=n + 1) for n in range(30)
    ]
    assert steps_of(made(*rows)).number.tolist() == list(range(1, 31))
    assert steps_of(made(*rows[12:])).number.tolist() == list(range(13, 31))


def test_calls_may_come_in_any_order() -> None:
    calls = made(*(fast(step, 10 * step + b) for step in (1, 2, 3) for b in (0, 1)))
    mixed = calls[np.random.default_rng(0).permutation(len(calls))]
    assert of(steps_of(mixed)) == of(steps_of(calls))
    assert steps_of(mixed).end.tolist() == steps_of(calls).end.tolist()
    assert find_gradient_calls(mixed).number.tolist() == mixed["invocation"].tolist()


def test_a_step_has_the_same_number_on_ranks_that_had_joined() -> None:
    """Rank 1 joined before the plans 4 and 5, and rank 0 before 8 and 9, which it did not count."""
    plans = {0: (3, 4, 5, 6, 7, 10), 1: (3, 6, 7, 8, 9, 10), 2: (6,)}
    found = {
        rank: steps_of(made(*(fast(n, 10 * at, sequence=at) for n, at in enumerate(of_rank, 1))))
        for rank, of_rank in plans.items()
    }
    assert found[1].number.tolist() == [1, 2, 3, 4, 5, 6]
    same = align_steps(found)
    assert same[0].number.tolist() == [1, 2, 3, 4, 5, 8]
    assert same[1].number.tolist() == [1, 4, 5, 6, 7, 8]
    assert same[2].number.tolist() == [4]
    assert same[1].end.tolist() == found[1].end.tolist()


def test_a_step_without_a_plan_is_counted_on() -> None:
    first = steps_of(made(fast(1, 10, sequence=1), fast(2, 20, sequence=2), call(3, 30, 0, 0)))
    second = steps_of(made(fast(1, 20, sequence=2), call(2, 30, 0, 0)))
    other = steps_of(made(call(9, 30, 0, 0)))
    same = align_steps({0: first, 1: second, 2: other, 3: steps_of(made())})
    assert [same[rank].number.tolist() for rank in same] == [[1, 2, 3], [2, 3], [9], []]


def test_rows_of_sparse_gradients_move_in_the_step_that_counted_them() -> None:
    """In step 2 they are reduced as a table: the gathering of step 3 is the second one."""
    counts = {"name": f"{gradient_name()}.sparse"}
    values = {"name": f"{gradient_name()}.sparse.0.values", "flags": 0}
    values["kind"] = layout.KINDS.index("allgather")
    dense = {"name": f"{gradient_name()}.sparse.0.dense", "flags": 0}
    calls = made(
        call(5, 5, 5, 6, **values),  # of a step that was overwritten
        call(6, 10, 11, 12),
        call(6, 12, 12, 14, **counts),
        call(6, 15, 16, 20, **values),
        call(7, 30, 31, 32),
        call(7, 32, 32, 34, **counts),
        call(1, 35, 36, 50, **dense),
        call(8, 60, 61, 62),
        call(8, 62, 62, 64, **counts),
        call(7, 65, 66, 70, **values),
        call(8, 71, 71, 72, name="x.0.values", flags=0),
    )
    steps = steps_of(calls)
    assert (steps.number.tolist(), steps.buckets.tolist()) == ([6, 7, 8], [2, 2, 2])
    assert (steps.ready.tolist(), steps.end.tolist()) == ([10, 30, 60], [20, 50, 70])
    assert (steps.bytes.tolist(), steps.began.tolist()) == ([30, 30, 30], [0, 20, 50])
    assert steps.communicating.tolist() == [7, 17, 7]
    assert steps.waiting.tolist() == [3, 3, 3]
