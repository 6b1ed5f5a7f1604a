"""The binding: shapes, roots and splits of each collective; sets and threads at the same time.

Ops, dtypes and scale factors of each collective are in the table of tests/helpers/matrix_rows.py.
"""

from __future__ import annotations

import pathlib
import threading

import numpy as np
import pytest
from native_cases import (
    ALL_DTYPES,
    LIMIT,
    MAX,
    MIN,
    PRODUCT,
    SUM,
    dtype_of,
    reduced,
    share,
    values,
)

from tfring._native import core

SHAPES = [(0, 3), (1,), (7, 2), (24, 1, 5), (3, 0), (50_001,)]


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_every_dtype_comes_back(dtype: str, rank: int, size: int) -> None:
    rows = [values(dtype, r, ((r + 1) % 3, 2)) for r in range(size)]
    got = core.allgather(rows[rank], name=f"rows.{dtype}")
    assert got.dtype == dtype_of(dtype)
    np.testing.assert_array_equal(got, np.concatenate(rows))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_reducescatter_gives_our_rows(dtype: str, rank: int, size: int) -> None:
    for shape in SHAPES:
        arrays = [values(dtype, r, shape) for r in range(size)]
        for op in (SUM, MIN, MAX, PRODUCT):
            got = core.reducescatter(arrays[rank], name=f"rs.{dtype}", op=op)
            want = reduced(arrays, op)[share(shape[0], size, rank)]
            np.testing.assert_array_equal(got.astype(np.float64), want)


def test_every_rank_can_be_the_root(rank: int, size: int) -> None:
    for root in range(size):
        for shape in [*SHAPES, ()]:
            arrays = [values("float32", r, shape) for r in range(size)]
            got = core.reduce(arrays[rank], name="reduce", root=root, op=SUM)
            if rank == root:
                assert got.shape == shape
                np.testing.assert_array_equal(got, reduced(arrays, SUM))
            else:
                assert got is None
            got = core.broadcast(arrays[rank], name="broadcast", root=root)
            np.testing.assert_array_equal(got, arrays[root])
        rows = [values("int16", r, ((r + 2) % 3, 2)) for r in range(size)]
        got = core.gather(rows[rank], name="gather", root=root)
        np.testing.assert_array_equal(got, np.concatenate(rows) if rank == root else rows[0][:0])
        whole = values("int16", root, (2 * size, 3))
        mine = whole if rank == root else whole[:0]
        got = core.scatter(mine, name="scatter", root=root)
        np.testing.assert_array_equal(got, whole[2 * rank : 2 * rank + 2])


def test_scatter_in_parts_of_any_size(rank: int, size: int) -> None:
    for splits in (list(range(size)), [5] + [0] * (size - 1), [0] * size):
        bounds = np.cumsum([0, *splits])
        whole = np.arange(2.0 * bounds[-1]).reshape(-1, 2)
        mine = whole if rank == 0 else np.ones((3, 2))
        got = core.scatter(mine, splits, name="parts", root=0)
        np.testing.assert_array_equal(got, whole[bounds[rank] : bounds[rank + 1]])


def test_alltoall_with_any_splits(rank: int, size: int) -> None:
    some = np.random.default_rng(size).integers(0, 4, size=(size, size))
    for splits in (some, np.zeros_like(some), 3 * np.eye(size, dtype=int)):
        arrays = [values("uint16", r, (int(splits[r].sum()), 2)) for r in range(size)]
        got, received = core.alltoall(arrays[rank], splits[rank], name="all")
        np.testing.assert_array_equal(received, splits[:, rank])
        ends = np.cumsum(splits, axis=1)
        want = [arrays[r][ends[r, rank] - splits[r, rank] : ends[r, rank]] for r in range(size)]
        np.testing.assert_array_equal(got, np.concatenate(want))


def test_alltoall_in_equal_parts(rank: int, size: int) -> None:
    for rows in (0, 1, 3, 40_000):
        mine = np.repeat(np.arange(size) + 10 * rank, rows)
        got, received = core.alltoall(mine, name="equal")
        np.testing.assert_array_equal(received, [rows] * size)
        np.testing.assert_array_equal(got, np.repeat(np.arange(size) * 10 + rank, rows))


def test_send_and_recv(rank: int, several: int) -> None:
    """Every rank sends to the next one; the receiver knows the shape, a part of it, or nothing."""
    left, right = (rank - 1) % several, (rank + 1) % several
    for shape, known in [((2, 3), None), ((), ()), ((5,), (-1,)), ((0, 2), (0, 2))]:
        sent = core.send_async(values("complex64", rank, shape), name="ring", dest=right)
        got = core.recv(np.complex64, known, name="ring", source=left)
        assert sent.wait(LIMIT) is None
        assert got.dtype == np.complex64
        np.testing.assert_array_equal(got, values("complex64", left, shape))


def test_messages_of_a_pair_need_nobody_else(rank: int, several: int) -> None:
    if rank == 0:
        for i in range(20):
            core.send(np.full(i * 1000, i), name=f"m{i}", dest=several - 1)
    elif rank == several - 1:
        for i in range(20):
            got = core.recv(np.int64, name=f"m{i}", source=0)
            np.testing.assert_array_equal(got, np.full(i * 1000, i))


def test_overlapping_sets_in_flight_together(rank: int, several: int) -> None:
    """Roots are world ranks; one name may be in flight in each set."""
    size = several
    groups = [sorted({i, (i + 1) % size}) for i in range(size if size > 2 else 1)]
    groups = groups if size > 2 else [[1]]
    ids = [core.add_process_set(group) for group in groups]
    handles = {}
    for group, number in zip(groups, ids, strict=True):
        if rank not in group:
            continue
        at = {"name": "over", "process_set": number}
        mine = np.full((len(group), 3), rank + 1.0)
        handles[number] = (
            core.allreduce_async(mine, op=SUM, **at),
            core.broadcast_async(mine, root=group[-1], **{**at, "name": "over.root"}),
            core.alltoall_async(mine, **{**at, "name": "over.all"}),
            core.reducescatter_async(mine, op=MAX, **{**at, "name": "over.rs"}),
        )
    for group, number in zip(groups, ids, strict=True):
        if rank not in group:
            continue
        total, last, rows, most = [handle.wait(LIMIT) for handle in handles[number]]
        np.testing.assert_array_equal(total, sum(r + 1 for r in group))
        np.testing.assert_array_equal(last, group[-1] + 1)
        np.testing.assert_array_equal(rows[0][:, 0], [r + 1 for r in group])
        np.testing.assert_array_equal(most, np.full((1, 3), group[-1] + 1))
    for number in ids:
        core.remove_process_set(number)


def test_threads_use_their_own_sets(rank: int, several: int) -> None:
    groups = [list(range(several)), [0], [several - 1], list(range(1, several))][
        : 3 + (several > 2)
    ]
    ids = [0] + [core.add_process_set(group) for group in groups[1:]]
    wrong: list[str] = []

    def work(number: int, group: list[int]) -> None:
        for step in range(100):
            x = np.full(step, rank + step)
            got = core.allreduce(x, name="thread", op=SUM, process_set=number)
            if got.tolist() != [sum(group) + len(group) * step] * step:
                wrong.append(f"{group} {step} {got}")

    threads = [
        threading.Thread(target=work, args=(number, group))
        for number, group in zip(ids, groups, strict=True)
        if rank in group
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert not wrong
    for number in ids[1:]:
        core.remove_process_set(number)


def free_memory_gib() -> float:
    """The memory that this machine has left."""
    text = pathlib.Path("/proc/meminfo").read_text()
    kib = next(line.split()[1] for line in text.splitlines() if line.startswith("MemAvailable"))
    return int(kib) / 2**20


def test_more_than_two_gib(rank: int, size: int) -> None:
    if size != 2:
        pytest.skip("takes the memory of two ranks")
    free = core.broadcast(np.array(free_memory_gib()), name="free", root=0)
    if free < 16:
        pytest.skip("needs 16 GiB of free memory")
    count = 2**31 + 16
    large = np.zeros(count, np.uint8)
    if rank == 0:
        large[[0, 2**31 - 1, 2**31, -1]] = [1, 2, 3, 4]
    got = core.broadcast(large, name="large", root=0)
    assert got.shape == (count,)
    assert got[[0, 2**31 - 1, 2**31, -1]].tolist() == [1, 2, 3, 4]
    assert np.count_nonzero(got) == 4
    del large, got
    part = np.full(count // 2, rank + 1, np.uint8)
    got = core.allgather(part, name="large")
    assert got.shape == (count,)
    for r, half in enumerate((got[: count // 2], got[count // 2 :])):
        assert half.min() == half.max() == r + 1
