"""The binding: dtypes, equal parts, known shapes of messages, threads, and tensors beyond 2 GiB.

Ops, scale factors and shapes of each collective are in the table of tests/helpers/matrix_rows.py;
roots, splits and overlapping sets are in collectives/test_random_collectives.py.
"""

from __future__ import annotations

import pathlib
import threading

import numpy as np
import pytest
from native_cases import ALL_DTYPES, LIMIT, SUM, dtype_of, values

from tfring.runtime._native import core

pytestmark = pytest.mark.any_ranks


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_every_dtype_comes_back(dtype: str, rank: int, size: int) -> None:
    rows = [values(dtype, r, ((r + 1) % 3, 2)) for r in range(size)]
    got = core.allgather(rows[rank], name=f"rows.{dtype}")
    assert got.dtype == dtype_of(dtype)
    np.testing.assert_array_equal(got, np.concatenate(rows))


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


@pytest.mark.slow
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
