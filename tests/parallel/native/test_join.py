"""The binding: ranks that run out of data join, and the others go on without them."""

from __future__ import annotations

import numpy as np
import pytest
from native_cases import (
    AVERAGE,
    FAILED_PRECONDITION,
    LIMIT,
    SUM,
    dtype_of,
    expect_error,
    process_set,
)

from tfring._native import core

STEPS = (3, 7, 5, 4)


def present(step: int, size: int) -> list[int]:
    """The ranks that make the step."""
    return [r for r in range(size) if STEPS[r] > step]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_averages_are_over_those_who_are_left(dtype: str, rank: int, size: int) -> None:
    for again in range(3):
        for step in range(STEPS[rank]):
            ranks = present(step, size)
            x = np.full(100, 12 * rank, dtype_of(dtype))
            got = core.allreduce(x, name="grads", op=AVERAGE).astype(np.float64)
            want = 12 * sum(ranks) / len(ranks)
            if dtype == "int32":
                want = want // 1
            np.testing.assert_allclose(got, want, rtol=1e-2 if dtype == "bfloat16" else 1e-6)
        last = max(range(size), key=lambda r: STEPS[r])
        assert core.join() == last, again
    got = core.allreduce(np.ones(3), name="grads", op=SUM)
    np.testing.assert_array_equal(got, size)


def test_all_that_can_go_on_does(rank: int, size: int) -> None:
    """With the rank of most steps as the root, which stays to the end."""
    root = max(range(size), key=lambda r: STEPS[r])
    for step in range(STEPS[rank]):
        ranks = present(step, size)
        mine = np.full((rank + 1, 2), rank, np.int64)
        rows = np.concatenate([np.full((r + 1, 2), r) for r in ranks])
        handles = [
            core.allgather_async(mine, name="rows"),
            core.gather_async(mine, name="root.rows", root=root),
            core.broadcast_async(mine[:1], name="cast", root=root),
            core.reduce_async(mine[0], name="sum", root=root, op=SUM),
            core.barrier_async(name="all"),
        ]
        everywhere, gathered, cast, total, _ = [handle.wait(LIMIT) for handle in handles]
        np.testing.assert_array_equal(everywhere, rows)
        np.testing.assert_array_equal(gathered, rows if rank == root else rows[:0])
        np.testing.assert_array_equal(cast, root)
        if rank == root:
            np.testing.assert_array_equal(total, sum(ranks))
    assert core.join() == root


def test_what_needs_everybody_says_so(rank: int, several: int) -> None:
    x = np.ones((12, 1))
    if rank == 0:
        core.join()
    else:
        for call in (
            lambda: core.reducescatter(x, name="rs", op=SUM),
            lambda: core.alltoall(x, name="a2a"),
            lambda: core.scatter(x, name="s", root=1),
            lambda: core.broadcast(x, name="b", root=0),
            lambda: core.reduce(x, name="r", root=0, op=SUM),
            lambda: core.gather(x, name="g", root=0),
            lambda: core.send(x, name="m", dest=0),
        ):
            expect_error(FAILED_PRECONDITION, call, "joined")
        core.join()
    core.barrier(name="together")


def test_joined_everywhere_is_joined_in_every_set(rank: int, several: int) -> None:
    if several < 3:
        pytest.skip("needs three ranks")
    with process_set([0, several - 1]) as pair:
        if rank == 0:
            core.join()
        else:
            if rank == several - 1:
                got = core.allreduce(np.ones(2), name="pair", op=SUM, process_set=pair)
                np.testing.assert_array_equal(got, 1)
            core.join()


def test_joining_a_set_concerns_that_set_only(rank: int, several: int) -> None:
    if several < 3:
        pytest.skip("needs three ranks")
    with process_set([0, 1]) as pair:
        joined = core.join_async(process_set=pair) if rank == 0 else None
        for _ in range(3):
            got = core.allreduce(np.ones(2), name="all", op=SUM)
            np.testing.assert_array_equal(got, several)
        if rank == 1:
            got = core.allreduce(np.ones(2), name="pair", op=AVERAGE, process_set=pair)
            np.testing.assert_array_equal(got, 1)
            assert core.join(process_set=pair) == 1
        if joined is not None:
            assert joined.wait(LIMIT) == 1
