"""The binding: every collective with every dtype against what numpy says."""

from __future__ import annotations

import pathlib
import threading

import numpy as np
import pytest
from native_cases import (
    ALL_DTYPES,
    AVERAGE,
    FLOATS,
    INVALID_ARGUMENT,
    LIMIT,
    MAX,
    MIN,
    PRODUCT,
    REDUCIBLE,
    SUM,
    dtype_of,
    expect_error,
    process_set,
    reduced,
    share,
    values,
)

from tfring._native import core

TOLERANCE = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-6, "float64": 1e-15}
SHAPES = [(0, 3), (1,), (7, 2), (24, 1, 5), (3, 0), (50_001,)]


@pytest.mark.parametrize("dtype", REDUCIBLE)
def test_reducescatter_gives_our_rows(dtype: str, rank: int, size: int) -> None:
    for shape in SHAPES:
        arrays = [values(dtype, r, shape) for r in range(size)]
        for op in (SUM, MIN, MAX, PRODUCT):
            got = core.reducescatter(arrays[rank], name=f"rs.{dtype}", op=op)
            assert got.dtype == dtype_of(dtype)
            want = reduced(arrays, op)[share(shape[0], size, rank)]
            np.testing.assert_array_equal(got.astype(np.float64), want)


@pytest.mark.parametrize("dtype", FLOATS)
def test_reducescatter_averages_and_scales(dtype: str, rank: int, size: int) -> None:
    arrays = [values(dtype, r, (11, 3)) for r in range(size)]
    got = core.reducescatter(
        arrays[rank], name=f"rs.{dtype}", op=AVERAGE, prescale=2.0, postscale=0.25
    )
    want = 0.5 * reduced(arrays, AVERAGE)[share(11, size, rank)]
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=2 * TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", REDUCIBLE)
def test_reduce_to_every_root(dtype: str, rank: int, size: int) -> None:
    for root in range(size):
        for shape in [*SHAPES, ()]:
            arrays = [values(dtype, r, shape) for r in range(size)]
            for op in (SUM, MAX):
                got = core.reduce(arrays[rank], name=f"reduce.{dtype}", root=root, op=op)
                if rank != root:
                    assert got is None
                    continue
                assert got.dtype == dtype_of(dtype) and got.shape == shape
                np.testing.assert_array_equal(got.astype(np.float64), reduced(arrays, op))


def test_reduce_averages(rank: int, size: int) -> None:
    got = core.reduce(np.full(5, rank, np.float32), name="mean", root=size - 1, op=AVERAGE)
    if rank == size - 1:
        np.testing.assert_allclose(got, (size - 1) / 2)


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_gather_on_every_root(dtype: str, rank: int, size: int) -> None:
    arrays = [values(dtype, r, ((r + 2) % 3, 2)) for r in range(size)]
    for root in range(size):
        got = core.gather(arrays[rank], name=f"gather.{dtype}", root=root)
        assert got.dtype == dtype_of(dtype)
        want = np.concatenate(arrays) if rank == root else np.zeros((0, 2))
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_scatter_from_every_root(dtype: str, rank: int, size: int) -> None:
    nothing = np.zeros((0, 3), dtype_of(dtype))
    for root in range(size):
        whole = values(dtype, root, (2 * size, 3))
        got = core.scatter(whole if rank == root else nothing, name=f"s.{dtype}", root=root)
        assert got.dtype == dtype_of(dtype)
        np.testing.assert_array_equal(got, whole[2 * rank : 2 * rank + 2])


def test_scatter_in_parts_of_any_size(rank: int, size: int) -> None:
    for splits in (list(range(size)), [5] + [0] * (size - 1), [0] * size):
        bounds = np.cumsum([0, *splits])
        whole = np.arange(2.0 * bounds[-1]).reshape(-1, 2)
        mine = whole if rank == 0 else np.ones((3, 2))
        got = core.scatter(mine, splits, name="parts", root=0)
        np.testing.assert_array_equal(got, whole[bounds[rank] : bounds[rank + 1]])


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_alltoall_with_any_splits(dtype: str, rank: int, size: int) -> None:
    matrix = np.random.default_rng(size).integers(0, 4, size=(size, size))
    arrays = [values(dtype, r, (int(matrix[r].sum()), 2)) for r in range(size)]
    got, received = core.alltoall(arrays[rank], matrix[rank], name=f"a2a.{dtype}")
    assert got.dtype == dtype_of(dtype)
    np.testing.assert_array_equal(received, matrix[:, rank])
    ends = np.cumsum(matrix, axis=1)
    want = [arrays[r][ends[r, rank] - matrix[r, rank] : ends[r, rank]] for r in range(size)]
    np.testing.assert_array_equal(got, np.concatenate(want))


def test_alltoall_in_equal_parts(rank: int, size: int) -> None:
    for rows in (0, 1, 3, 40_000):
        mine = np.repeat(np.arange(size) + 10 * rank, rows)
        got, received = core.alltoall(mine, name="equal")
        np.testing.assert_array_equal(received, [rows] * size)
        np.testing.assert_array_equal(got, np.repeat(np.arange(size) * 10 + rank, rows))


def test_alltoall_of_nothing_and_to_oneself(rank: int, size: int) -> None:
    got, received = core.alltoall(np.zeros((0, 2)), [0] * size, name="nothing")
    assert got.shape == (0, 2) and not received.any()
    mine = np.full((3, 1), rank)
    got, received = core.alltoall(mine, [3 * (r == rank) for r in range(size)], name="self")
    np.testing.assert_array_equal(got, mine)
    assert received[rank] == received.sum() == 3


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_send_and_recv(dtype: str, rank: int, several: int) -> None:
    """Around the ring, all at once; the receiver may know the shape, or parts, or nothing."""
    left, right = (rank - 1) % several, (rank + 1) % several
    for shape, told in [((2, 3), None), ((), ()), ((5,), (-1,)), ((0, 2), (0, 2))]:
        sent = core.send_async(values(dtype, rank, shape), name=f"ring.{dtype}", dest=right)
        got = core.recv(dtype_of(dtype), told, name=f"ring.{dtype}", source=left)
        assert sent.wait(LIMIT) is None
        assert got.dtype == dtype_of(dtype)
        np.testing.assert_array_equal(got, values(dtype, left, shape))


def test_messages_of_a_pair_need_nobody_else(rank: int, several: int) -> None:
    if rank == 0:
        for i in range(20):
            core.send(np.full(i * 1000, i), name=f"m{i}", dest=several - 1)
    elif rank == several - 1:
        for i in range(20):
            got = core.recv(np.int64, name=f"m{i}", source=0)
            np.testing.assert_array_equal(got, np.full(i * 1000, i))


def test_process_sets_have_ids(rank: int, several: int) -> None:
    everybody = list(range(several))
    assert core.process_sets() == {0: everybody}
    with process_set([0]) as first, process_set([several - 1]) as second:
        assert second == first + 1
        assert core.process_sets() == {0: everybody, first: [0], second: [several - 1]}
        expect_error(INVALID_ARGUMENT, lambda: core.add_process_set([0]), "registered already", "0")
    assert core.process_sets() == {0: everybody}
    with process_set([several - 1]) as again:
        assert again == second + 1


def test_a_set_of_one_runs_everything(rank: int, several: int) -> None:
    with process_set([1]) as alone:
        if rank != 1:
            expect_error(
                INVALID_ARGUMENT,
                lambda: core.barrier(name="alone", process_set=alone),
                f"rank {rank}",
            )
            return
        at = {"name": "alone", "process_set": alone}
        x = np.arange(6.0).reshape(3, 2)
        np.testing.assert_array_equal(core.allreduce(x, op=AVERAGE, postscale=2.0, **at), 2 * x)
        np.testing.assert_array_equal(core.reducescatter(x, op=SUM, prescale=3.0, **at), 3 * x)
        np.testing.assert_array_equal(core.reduce(x, op=PRODUCT, root=1, **at), x)
        np.testing.assert_array_equal(core.allgather(x, **at), x)
        np.testing.assert_array_equal(core.gather(x, root=1, **at), x)
        np.testing.assert_array_equal(core.broadcast(x, root=1, **at), x)
        np.testing.assert_array_equal(core.scatter(x, root=1, **at), x)
        got, received = core.alltoall(x, **at)
        np.testing.assert_array_equal(got, x)
        assert received.tolist() == [3]
        core.barrier(**at)
        assert core.join(process_set=alone) == 1


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


def test_many_at_once(rank: int, size: int) -> None:
    arrays = [
        [values("float32", 7 * i + r, (i % 9, 1 + i % 3)) for r in range(size)] for i in range(99)
    ]
    before = core.counters()
    sums = [
        core.reducescatter_async(a[rank], name=f"many.{i}", op=SUM) for i, a in enumerate(arrays)
    ]
    most = [core.allreduce_async(a[rank], name=f"most.{i}", op=MAX) for i, a in enumerate(arrays)]
    for of_all, part, whole in zip(arrays, sums, most, strict=True):
        want = reduced(of_all, SUM)[share(len(of_all[0]), size, rank)]
        np.testing.assert_array_equal(part.wait(LIMIT), want)
        np.testing.assert_array_equal(whole.wait(LIMIT), reduced(of_all, MAX))
    after = core.counters()
    assert after["collectives"] - before["collectives"] >= 198


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
    """What this machine could give."""
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
