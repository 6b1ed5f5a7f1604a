"""The numbers computed from measured times, and the order of turns. Nothing is timed."""

from __future__ import annotations

import math
import os
import tempfile
import threading
from typing import Any

import numpy as np

from tfring.bench import samples, timing
from tfring.bench.options import BUS_FACTORS, Shape, shape_of
from tfring.bench.shared_barrier import SharedBarrier, file_size


def test_intervals_hold_what_they_should() -> None:
    random = np.random.default_rng(3)
    held = 0
    for _ in range(100):
        low, high = samples.median_interval(random.normal(5, 1, 40).tolist())
        held += low <= 5 <= high
    assert 88 <= held <= 100


def test_a_ratio_between_runs_has_an_interval() -> None:
    random = np.random.default_rng(3)
    a = random.lognormal(0, 0.1, 50)
    low, high = samples.ratio_interval(a.tolist(), (2 * random.permutation(a)).tolist())
    assert 1.8 < low < 2 < high < 2.2
    assert samples.ratio_interval(a.tolist(), [-1.0] * 50) == (0.0, math.inf)
    assert samples.ratio_interval([1.0, 1.0], [2.0, 2.0]) == (0.0, math.inf)


def test_sizes_and_factors_are_those_of_nccl_tests() -> None:
    assert shape_of("allreduce", 64, "float32", 4) == Shape(16, 16, 64)
    assert shape_of("allgather", 64, "float32", 4) == Shape(4, 16, 64)
    assert shape_of("reducescatter", 64, "float16", 4) == Shape(32, 8, 64)
    assert shape_of("alltoall", 64, "float64", 4) == Shape(8, 8, 64)
    assert {name: BUS_FACTORS[name](4) for name in ("allreduce", "allgather", "broadcast")} == {
        "allreduce": 1.5,
        "allgather": 0.75,
        "broadcast": 1.0,
    }


class Alone:
    """A job of one rank; other ranks would take 5 ms more."""

    def barrier(self) -> None:
        pass

    def slowest(self, values: Any) -> Any:
        return np.asarray(values) + 5


def test_candidates_take_turns() -> None:
    order: list[str] = []

    def turn(name: str) -> timing.Turn:
        def take(calls: int) -> list[float]:
            order.append(name)
            return [float(len(order))] * calls

        return take

    turns = {name: turn(name) for name in "abc"}
    times = timing.alternate(Alone(), turns, 4, calls=2, warmup=1)
    assert {name: took.shape for name, took in times.items()} == dict.fromkeys("abc", (4, 2))
    rounds = ["".join(order[i : i + 3]) for i in range(0, len(order), 3)]
    assert rounds == ["cab", "abc", "bca", "cab", "abc"]  # the first is not counted
    assert times["a"][:, 0].tolist() == [9.0, 14.0, 16.0, 18.0]


def test_a_time_limit_takes_rounds_away_but_three() -> None:
    turns = {"a": lambda calls: [1.0] * calls}
    assert len(timing.alternate(Alone(), turns, 50, seconds=0.0)["a"]) == timing.LEAST_ROUNDS
    assert len(timing.alternate(Alone(), turns, 50)["a"]) == 50


def test_the_first_of_several_calls_is_not_counted() -> None:
    made: list[int] = []
    turn = timing.timed(Alone().barrier, lambda: made.append(1))
    assert (len(turn(1)), len(made)) == (1, 1)
    assert (len(turn(4)), len(made)) == (4, 6)


def test_nobody_leaves_a_barrier_before_all_are_there() -> None:
    count, rounds = 3, 50
    arrived = [0] * count
    early: list[str] = []
    with tempfile.TemporaryFile() as file:
        os.ftruncate(file.fileno(), file_size(count))

        def work(place: int) -> None:
            barrier = SharedBarrier(file.fileno(), place, count)
            for turn in range(1, rounds + 1):
                arrived[place] = turn
                barrier.wait()
                if min(arrived) < turn:
                    early.append(f"{place} left turn {turn}: {arrived}")

        threads = [threading.Thread(target=work, args=(place,)) for place in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
    assert early == []
