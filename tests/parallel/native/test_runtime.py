"""The binding: calls in flight, their names, counters, and every size of an allreduce."""

from __future__ import annotations

import os
import random
import signal
import threading

import numpy as np
import pytest
from native_cases import SUM
from tiers import slow

from tfring.runtime._native import core


@pytest.mark.any_ranks
@pytest.mark.parametrize("count", [0, 1, 7, 5_000, 100_003, 3_000_000])
def test_every_size_takes_its_algorithm(count: int, rank: int, size: int) -> None:
    got = core.allreduce(np.full(count, rank + 1, np.float32), name=f"size.{count}", op=SUM)
    assert got.shape == (count,)
    np.testing.assert_array_equal(got, size * (size + 1) / 2)


@pytest.mark.any_ranks
def test_an_input_may_change_after_the_call(rank: int, size: int) -> None:
    array = np.full(1000, 1.0)
    handle = core.allreduce_async(array, name="changed", op=SUM)
    array[:] = 99
    np.testing.assert_array_equal(handle.wait(), size)


def test_bad_calls_are_refused_alone(rank: int, size: int) -> None:
    with pytest.raises(ValueError, match="op must be"):
        core.allreduce(np.zeros(3), name="bad.op", op=6)
    with pytest.raises(TypeError, match=r"bad\.dtype.*supported are"):
        core.allreduce(np.array(["text"]), name="bad.dtype", op=SUM)
    np.testing.assert_array_equal(core.allreduce(np.ones(2), name="bad.op", op=SUM), size)


def test_a_name_in_flight_is_refused(rank: int, several: int) -> None:
    if rank == 0:
        first = core.allreduce_async(np.ones(4), name="twice", op=SUM)
        with pytest.raises(core.CoreError, match=r"twice.*in flight"):
            core.allreduce(np.ones(4), name="twice", op=SUM)
        core.barrier(name="twice.refused")
    else:
        core.barrier(name="twice.refused")
        first = core.allreduce_async(np.ones(4), name="twice", op=SUM)
    np.testing.assert_array_equal(first.wait(), several)


def test_ctrl_c_ends_what_other_ranks_wait_for(rank: int, several: int) -> None:
    if rank == 0:
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            core.allreduce(np.ones(4), name="interrupted", op=SUM)
    else:
        with pytest.raises(core.CoreError, match=r"step of rank 0 .*interrupted"):
            core.barrier(name="interrupted.other")
    core.barrier(name="interrupted.left")


@pytest.mark.any_ranks
@pytest.mark.parametrize("rounds", [100, slow(400)])
def test_uneven_arrival(rounds: int, rank: int, size: int) -> None:
    """Every rank submits the same 200 tensors in an order of its own, many times over."""
    tensors, in_flight = 200, 5
    lengths = [1 + (37 * i) % 61 for i in range(tensors)]
    arrays = [np.full(n, float(rank + i), np.float32) for i, n in enumerate(lengths)]
    base = size * (size - 1) / 2
    rng = random.Random(f"uneven.{rank}")
    for first in range(0, rounds, in_flight):
        order = [(r, i) for r in range(first, first + in_flight) for i in range(tensors)]
        rng.shuffle(order)
        handles = {
            (r, i): core.allreduce_async(arrays[i], name=f"uneven.{r % in_flight}.{i}", op=SUM)
            for r, i in order
        }
        for (_, i), handle in handles.items():
            got = handle.wait()
            assert got.shape == (lengths[i],)
            assert got[0] == got[-1] == base + i * size


@pytest.mark.any_ranks
def test_counters_count(rank: int, size: int) -> None:
    before = core.counters()
    for i in range(5):
        core.allreduce(np.ones(1000), name=f"counted.{i}", op=SUM)
    after = core.counters()
    assert after["collectives"] - before["collectives"] >= 5
    if size > 1:
        assert after["bytes_sent"] > before["bytes_sent"]
