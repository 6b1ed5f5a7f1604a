"""The monitor of slow ranks: its false alarms, and its delay."""

from __future__ import annotations

import numpy as np
import pytest

from tfring.observe.report.slowdowns import (
    COMPUTE,
    INPUT,
    OWN_WORK,
    Slowdown,
    SlowdownMonitor,
    compute_excess,
    find_change,
)

RANKS, LOOK, MS = 3, 10, 1e6


def uneven(rng: np.random.Generator, steps: int, kind: int) -> np.ndarray:
    """Milliseconds of work in steps that are uneven and stationary."""
    work = 100 * rng.lognormal(0, 0.1, (RANKS, steps))
    if kind == 1:  # some steps are very slow
        return work + 100 * (rng.random(work.shape) < 0.02) * rng.pareto(1.2, work.shape)
    if kind == 2:  # every tenth step saves something, on each rank at another time
        return work + 80 * ((np.arange(steps) + 3 * np.arange(RANKS)[:, None]) % 10 == 0)
    if kind == 3:  # steps that follow one another are alike
        noise = rng.normal(0, 8, (RANKS, steps))
        for step in range(1, steps):
            noise[:, step] += 0.4 * noise[:, step - 1]
        return 100 + noise
    return work


def watch(work: np.ndarray, inputs: np.ndarray | None = None) -> list[tuple[int, Slowdown]]:
    """What the monitor says, each with the number of steps that had ended then."""
    monitor, said = SlowdownMonitor(RANKS), []
    unknown = np.full(work.shape, np.nan)
    inputs = unknown if inputs is None else inputs
    for begin in range(0, work.shape[1], LOOK):
        part = slice(begin, begin + LOOK)
        numbers = np.arange(begin, begin + LOOK) + 1
        total = work[:, part].max(axis=0) * MS
        found = monitor.add(numbers, work[:, part] * MS, inputs[:, part] * MS, total)
        said += [(begin + LOOK, one) for one in found]
    return said


@pytest.mark.slow
def test_uneven_steps_are_no_alarm_in_99_of_100_runs_of_2000_steps() -> None:
    wrong = [
        seed for seed in range(100) if watch(uneven(np.random.default_rng(seed), 2000, seed % 4))
    ]
    assert len(wrong) <= 1, f"alarms with the seeds {wrong}"


@pytest.mark.parametrize("kind", range(4))
def test_a_rank_that_is_slower_by_a_fifth_is_named_within_50_steps(kind: int) -> None:
    for seed in range(2):
        work = uneven(np.random.default_rng(1000 + seed), 500, kind)
        work[1, 400:] *= 1.2
        said = watch(work)
        assert said, f"seed {seed}: nothing was said"
        when, found = said[0]
        assert found.rank == 1 and found.part == OWN_WORK and when <= 460, (seed, said)
        assert abs(found.step - 401) <= 20, (seed, said)
        assert found.more / MS == pytest.approx(20, abs=10), (seed, said)


@pytest.mark.parametrize("part", [INPUT, COMPUTE])
def test_the_part_that_became_slow_is_named(part: str) -> None:
    rng = np.random.default_rng(7)
    inputs = 20 * rng.lognormal(0, 0.2, (RANKS, 300))
    inputs[2, 200:] += 40 * (part == INPUT)
    work = uneven(rng, 300, 0) + inputs
    work[2, 200:] += 40 * (part == COMPUTE)
    ((_, found),) = watch(work, inputs)
    assert (found.rank, found.part) == (2, part)
    assert f"in its {part}" in found.text()


def test_a_rank_that_is_fast_again_is_named_again() -> None:
    work = uneven(np.random.default_rng(8), 600, 0)
    work[0, 200:400] += 50
    said = [found for _, found in watch(work)]
    assert [found.rank for found in said] == [0, 0]
    assert said[0].until is None and said[1].until is not None
    assert abs(said[1].until - 401) <= 10
    assert said[1].text().endswith(f"fast again since step {said[1].until}")


def test_all_ranks_slower_together_names_none() -> None:
    work = uneven(np.random.default_rng(9), 600, 0)
    work[:, 300:] *= 1.5
    assert watch(work) == []


def test_a_series_without_change_has_none() -> None:
    assert find_change(np.ones(500)) is None
    assert find_change(np.arange(10.0)) is None
    assert find_change(np.random.default_rng(11).normal(size=2000)) is None


@pytest.mark.parametrize("ranks", range(1, 8))
def test_a_rank_is_compared_with_the_median_of_the_others(ranks: int) -> None:
    own = np.random.default_rng(ranks).integers(0, 6, (ranks, 50))  # many are equal
    more = compute_excess(own)
    for rank in range(ranks):
        others = np.delete(own, rank, axis=0)
        median = np.median(others, axis=0) if ranks > 1 else 0
        assert np.array_equal(more[rank], own[rank] - median)
