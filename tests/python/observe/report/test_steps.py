"""Where the time of steps goes, for jobs whose records have times that are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_records import MS, gradient_name, write_record, write_training

from tfring.observe.recorder.job import load_job
from tfring.observe.recorder.layout import CallFlags
from tfring.observe.report.job_steps import JobSteps, find_job_steps
from tfring.observe.report.slowdowns import find_slowdowns
from tfring.observe.report.summary import make_report


def test_every_part_of_a_step_is_told_apart(tmp_path: Path) -> None:
    """Buckets are ready after 5 and 10 ms on rank 0, 7 and 14 on rank 1, 6 and 12 on rank 2."""
    own = np.repeat([[10.0], [14.0], [12.0]], 5, axis=1)
    steps = find_job_steps(load_job([write_training(tmp_path, own)]))
    assert steps.number.tolist() == [2, 3, 4, 5]  # when the first one began is not known
    np.testing.assert_array_equal(steps.own / MS, own[:, 1:])
    np.testing.assert_array_equal(steps.waiting[:, 0] / MS, [4, 0, 2])
    np.testing.assert_array_equal(steps.exposed[:, 0] / MS, [2, 2, 2])  # the last bucket
    assert set(steps.last_rank.tolist()) == {1}
    assert set((steps.waited_for / MS).tolist()) == {2.0}
    assert steps.efficiency == pytest.approx((10 + 14 + 12) / (3 * 16))


def test_without_the_record_of_rank_0_the_others_tell_who_was_late(tmp_path: Path) -> None:
    write_training(tmp_path, np.repeat([[10.0], [14.0], [12.0]], 5, axis=1))
    (tmp_path / "rank-0.record").unlink()
    report = make_report(load_job([tmp_path]))
    assert report.missing == (0,)
    assert report.steps.ranks == (1, 2)
    assert set(report.steps.last_rank.tolist()) == {1}
    assert set((report.steps.waited_for / MS).tolist()) == {2.0}
    assert report.slowest is not None and report.slowest.rank == 1


def call(bucket: int, step: int, begin: float, optimizer: int = 0, **more: int) -> dict[str, Any]:
    times = {"submitted": begin * MS, "planned": (begin + 1) * MS, "ended": (begin + 2) * MS}
    name, flags = gradient_name(bucket, optimizer), int(CallFlags.BUCKET)
    return {"name": name, "invocation": step, "flags": flags, **times, **more}


def steps_found(folder: Path, calls: list[dict[str, Any]]) -> JobSteps:
    return find_job_steps(load_job([write_record(folder / "rank-0.record", 0, 1, calls=calls)]))


def test_steps_that_are_not_complete_are_left_out(tmp_path: Path) -> None:
    calls = [call(1, 1, 15)]  # the other call of this step has been overwritten
    calls += [call(bucket, step, step * 10) for step in (2, 3, 4, 5) for bucket in (0, 1)]
    calls[4] = call(1, 3, 30, status=10)
    calls[8] = call(1, 5, 50, ended=0)
    assert steps_found(tmp_path, calls).number.tolist() == [2, 4]


def test_a_second_model_begins_to_count_anew(tmp_path: Path) -> None:
    calls = [call(0, step, step * 10) for step in range(1, 50)]
    calls += [call(b, step, 1000 + step * 10, 1) for step in range(1, 4) for b in (0, 1)]
    found = steps_found(tmp_path, calls)
    assert found.number.tolist() == [2, 3]


def test_waiting_for_gradients_of_each_of_two_optimizers_counts(tmp_path: Path) -> None:
    """Rank 1 takes 4 ms longer before the first gradients, and rank 0 2 ms before the second."""
    for rank in range(2):
        calls = []
        for n in range(1, 7):
            first, second = 100 * n + 4 * rank, 100 * n + 50 - 2 * rank
            planned = {"planned": (100 * n + 4) * MS, "ended": (100 * n + 10) * MS}
            calls.append(call(0, n, first, 0, **planned))
            planned = {"planned": (100 * n + 50) * MS, "ended": (100 * n + 53) * MS}
            calls.append(call(0, n, second, 1, **planned))
        write_record(tmp_path / f"rank-{rank}.record", rank, 2, calls=calls)
    found = find_job_steps(load_job([tmp_path]))
    assert found.number.tolist() == [2, 3, 4, 5, 6]
    np.testing.assert_array_equal(found.total / MS, np.full((2, 5), 100))
    np.testing.assert_array_equal(found.waiting[:, 0] / MS, [4, 2])
    np.testing.assert_array_equal(found.exposed[:, 0] / MS, [9, 9])
    np.testing.assert_array_equal(found.own[:, 0] / MS, [87, 89])
    assert set(found.last_rank.tolist()) == {1}
    assert set((found.waited_for / MS).tolist()) == {4.0}


@pytest.mark.parametrize("lost", range(3))
def test_a_rank_that_was_lost_long_ago_is_left_out(lost: int, tmp_path: Path) -> None:
    for rank in range(3):
        steps = range(1, 10) if rank == lost else range(100 + rank, 110)
        calls = [call(0, step, step * 10) for step in steps]
        write_record(tmp_path / f"rank-{rank}.record", rank, 3, calls=calls)
    found = find_job_steps(load_job([tmp_path]))
    others = [rank for rank in range(3) if rank != lost]
    assert found.ranks == tuple(others)
    assert found.number.tolist() == list(range(101 + others[1], 110))


def test_a_job_without_steps_has_a_report(tmp_path: Path) -> None:
    write_record(tmp_path / "rank-0.record", 0, 2)
    report = make_report(load_job([tmp_path]))
    assert report.steps.efficiency is None and report.slowest is None
    assert report.missing == (1,)


def uneven(rng: np.random.Generator, ranks: int, steps: int) -> np.ndarray:
    """Steps of 100 ms, more or less, of which some are very slow."""
    slow = (rng.random((ranks, steps)) < 0.01) * 300
    return 100 * rng.lognormal(0, 0.1, (ranks, steps)) + slow


def test_a_rank_that_becomes_slow_is_named_with_its_step(tmp_path: Path) -> None:
    own = uneven(np.random.default_rng(1), 3, 400)
    own[2, 150:320] += 30
    (found,) = find_slowdowns(find_job_steps(load_job([write_training(tmp_path, own)])))
    assert found.rank == 2
    assert abs(found.step - 151) <= 5
    assert found.until is not None and abs(found.until - 321) <= 5
    assert found.more / MS == pytest.approx(30, rel=0.2)


def test_what_all_ranks_have_in_common_names_none(tmp_path: Path) -> None:
    own = uneven(np.random.default_rng(2), 3, 400)
    own[:, 200:] += 30
    assert find_slowdowns(find_job_steps(load_job([write_training(tmp_path, own)]))) == []


def test_a_rank_is_not_slow_because_the_other_became_faster(tmp_path: Path) -> None:
    own = uneven(np.random.default_rng(3), 2, 400)
    own[0, 200:] *= 0.5
    assert find_slowdowns(find_job_steps(load_job([write_training(tmp_path, own)]))) == []
