"""The binding: a join of all ranks and process sets, and a join in a process set."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from native_cases import AVERAGE, SUM, process_set

from tfring.runtime._native import core

pytestmark = pytest.mark.any_ranks


def test_joining_a_set_of_one(rank: int, several: int) -> None:
    with process_set([1]) as alone:
        if rank == 1:
            assert core.join(process_set=alone) == 1


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
    with process_set([0, 1]) as pair, ThreadPoolExecutor(1) as thread:
        joined = thread.submit(core.join, pair) if rank == 0 else None
        for _ in range(3):
            got = core.allreduce(np.ones(2), name="all", op=SUM)
            np.testing.assert_array_equal(got, several)
        if rank == 1:
            got = core.allreduce(np.ones(2), name="pair", op=AVERAGE, process_set=pair)
            np.testing.assert_array_equal(got, 1)
            assert core.join(process_set=pair) == 1
        if joined is not None:
            assert joined.result() == 1
