"""The binding: collectives on numpy arrays against what numpy says."""

from __future__ import annotations

import os
import random
import signal
import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tfring._native import core

AVERAGE, SUM, MIN, MAX, PRODUCT = 0, 1, 3, 4, 5
INVALID_ARGUMENT, FAILED_PRECONDITION = 3, 9
LIMIT = 120.0

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "uint8", "int32", "int64")
OTHERS = ("bool", "int16", "uint16", "uint32", "uint64", "complex64", "complex128")


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name) if name == "bfloat16" else name)


def values(dtype: str, owner: int, count: int = 1000) -> np.ndarray[Any, Any]:
    """What rank `owner` has: small whole numbers, which every dtype here adds up exactly."""
    rng = np.random.default_rng(owner)
    return rng.integers(1, 4, size=count).astype(dtype_of(dtype))


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_allreduce_is_numpys_reduction(dtype: str, rank: int, size: int) -> None:
    everything = np.stack([values(dtype, r) for r in range(size)])
    wide = everything.astype(np.float64)
    expected = {
        SUM: wide.sum(0),
        MIN: wide.min(0),
        MAX: wide.max(0),
        PRODUCT: wide.prod(0),
    }
    for op, want in expected.items():
        got = core.allreduce(values(dtype, rank), name=f"numpy.{dtype}.{op}", op=op)
        assert got.dtype == dtype_of(dtype)
        np.testing.assert_array_equal(got.astype(np.float64), want)


@pytest.mark.parametrize("dtype", FLOATS)
def test_average_divides_by_the_size(dtype: str, rank: int, size: int) -> None:
    got = core.allreduce(values(dtype, rank), name=f"average.{dtype}", op=AVERAGE)
    want = np.stack([values(dtype, r) for r in range(size)]).astype(np.float64).mean(0)
    tolerance = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-6, "float64": 1e-15}[dtype]
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=tolerance)


@pytest.mark.parametrize("count", [0, 1, 7, 5_000, 100_003, 3_000_000])
def test_every_size_takes_its_algorithm(count: int, rank: int, size: int) -> None:
    got = core.allreduce(np.full(count, rank + 1, np.float32), name=f"size.{count}", op=SUM)
    assert got.shape == (count,)
    np.testing.assert_array_equal(got, size * (size + 1) / 2)


def test_scale_factors(rank: int, size: int) -> None:
    got = core.allreduce(
        np.array([1.5, rank]), name="scaled", op=SUM, prescale=1 / 3, postscale=0.1
    )
    total = size * (size - 1) / 2
    np.testing.assert_allclose(got, [1.5 * size / 30, total / 30], rtol=1e-15, atol=1e-300)


def test_shapes_survive(rank: int) -> None:
    for shape in [(), (1,), (2, 3), (2, 0, 3)]:
        array = np.zeros(shape, np.float32)
        assert core.allreduce(array, name=f"shape.{shape}", op=SUM).shape == shape
    strided = np.arange(12.0).reshape(3, 4).T
    got = core.broadcast(strided, name="strided", root=0)
    np.testing.assert_array_equal(got, strided)


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS + OTHERS)
def test_allgather_joins_rows_of_any_number(dtype: str, rank: int, size: int) -> None:
    rows = [np.full((r % 3, 2), r % 2, dtype_of(dtype)) for r in range(1, size + 1)]
    got = core.allgather(rows[rank], name=f"gather.{dtype}")
    np.testing.assert_array_equal(got, np.concatenate(rows))
    assert got.dtype == dtype_of(dtype)


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS + OTHERS)
def test_broadcast_from_every_root(dtype: str, rank: int, size: int) -> None:
    for root in range(size):
        got = core.broadcast(values(dtype, rank), name=f"cast.{dtype}.{root}", root=root)
        np.testing.assert_array_equal(got, values(dtype, root))


def test_an_input_may_change_after_the_call(rank: int, size: int) -> None:
    array = np.full(1000, 1.0)
    handle = core.allreduce_async(array, name="changed", op=SUM)
    array[:] = 99
    np.testing.assert_array_equal(handle.wait(LIMIT), size)


def expect_disagreement(call: Any, *parts: str) -> None:
    with pytest.raises(core.CoreError) as caught:
        call()
    assert caught.value.code == FAILED_PRECONDITION
    for part in parts:
        assert part in caught.value.message


def test_disagreements_name_tensor_ranks_and_values(rank: int, several: int) -> None:
    odd = rank == several - 1
    expect_disagreement(
        lambda: core.allreduce(
            np.zeros(3, np.float64 if odd else np.float32), name="odd.dtype", op=SUM
        ),
        *("odd.dtype", "float32", "float64", f"rank {several - 1}", "0"),
    )
    expect_disagreement(
        lambda: core.allreduce(np.zeros((4, 2) if odd else (2, 4)), name="odd.shape", op=SUM),
        *("odd.shape", "[4, 2]", "[2, 4]"),
    )
    expect_disagreement(
        lambda: core.allreduce(np.zeros(3), name="odd.op", op=MIN if odd else MAX),
        *("odd.op", "Min", "Max"),
    )
    expect_disagreement(
        lambda: core.broadcast(np.zeros(3), name="odd.root", root=1 if odd else 0),
        *("odd.root", "0", "1"),
    )
    expect_disagreement(
        lambda: core.allgather(np.zeros((2, 3 if odd else 2)), name="odd.rows"),
        *("odd.rows", "[2, 3]", "[2, 2]"),
    )
    expect_disagreement(
        lambda: core.allreduce(np.zeros(2), name="odd.scale", op=SUM, prescale=2.0 if odd else 3.0),
        *("odd.scale", "2", "3"),
    )
    got = core.allreduce(np.ones(3), name="odd.dtype", op=SUM)
    np.testing.assert_array_equal(got, several)


def test_bad_calls_are_refused_alone(rank: int, size: int) -> None:
    with pytest.raises(core.CoreError, match=f"root rank {size}") as caught:
        core.broadcast(np.zeros(3), name="bad.root", root=size)
    assert caught.value.code == INVALID_ARGUMENT
    with pytest.raises(ValueError, match="op must be"):
        core.allreduce(np.zeros(3), name="bad.op", op=6)
    with pytest.raises(TypeError, match=r"bad\.dtype.*supported are"):
        core.allreduce(np.array(["text"]), name="bad.dtype", op=SUM)
    with pytest.raises(core.CoreError, match="bool") as caught:
        core.allreduce(np.zeros(3, bool), name="bad.bool", op=SUM)
    assert caught.value.code == INVALID_ARGUMENT
    np.testing.assert_array_equal(core.allreduce(np.ones(2), name="bad.root", op=SUM), size)


def test_a_name_in_flight_is_refused(rank: int, several: int) -> None:
    if rank == 0:
        first = core.allreduce_async(np.ones(4), name="twice", op=SUM)
        with pytest.raises(core.CoreError, match=r"twice.*in flight"):
            core.allreduce(np.ones(4), name="twice", op=SUM)
        core.barrier(name="twice.refused")
    else:
        core.barrier(name="twice.refused")
        first = core.allreduce_async(np.ones(4), name="twice", op=SUM)
    np.testing.assert_array_equal(first.wait(LIMIT), several)


def test_ctrl_c_ends_the_wait_only(rank: int, several: int) -> None:
    if rank == 0:
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            core.allreduce(np.ones(4), name="interrupted", op=SUM)
        core.barrier(name="interrupted.left")
    else:
        core.barrier(name="interrupted.left")
        got = core.allreduce(np.ones(4), name="interrupted", op=SUM)
        np.testing.assert_array_equal(got, several)


def test_a_wait_can_have_a_limit(rank: int, several: int) -> None:
    if rank == 0:
        handle = core.allreduce_async(np.ones(4), name="limited", op=SUM)
        assert not handle.done()
        with pytest.raises(TimeoutError):
            handle.wait(timeout=0.01)
        core.barrier(name="limited.over")
    else:
        core.barrier(name="limited.over")
        handle = core.allreduce_async(np.ones(4), name="limited", op=SUM)
    np.testing.assert_array_equal(handle.wait(LIMIT), several)
    assert handle.done()


def test_uneven_arrival(rank: int, size: int) -> None:
    """Every rank submits the same 200 tensors in an order of its own, 1,000 times over."""
    tensors, rounds, in_flight = 200, 1000, 5
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
            got = handle.wait(LIMIT)
            assert got.shape == (lengths[i],)
            assert got[0] == got[-1] == base + i * size


def test_counters_count(rank: int, size: int) -> None:
    before = core.counters()
    for i in range(5):
        core.allreduce(np.ones(1000), name=f"counted.{i}", op=SUM)
    after = core.counters()
    assert after["collectives"] - before["collectives"] >= 5
    if size > 1:
        assert after["bytes_sent"] > before["bytes_sent"]
