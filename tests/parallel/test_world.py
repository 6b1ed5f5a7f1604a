"""The world of several processes, whatever started them."""

from __future__ import annotations

import numpy as np
import pytest

import tfring
from tfring import world
from tfring.runtime import process_sets, topology
from tfring.runtime._native import core

pytestmark = pytest.mark.any_ranks


def gathered(value, name):
    return list(core.allgather(np.array([value], np.int64), name=f"test_world.{name}"))


def test_ranks_are_distinct_and_complete(size):
    assert gathered(topology.rank(), "rank") == list(range(size))
    assert set(gathered(topology.size(), "size")) == {size}


def test_local_and_cross_ranks_fit_together(size):
    local, locals_ = gathered(topology.local_rank(), "lr"), gathered(topology.local_size(), "ls")
    cross, crosses = gathered(topology.cross_rank(), "cr"), gathered(topology.cross_size(), "cs")
    assert all(0 <= a < b for a, b in zip(local, locals_, strict=True))
    assert all(0 <= a < b for a, b in zip(cross, crosses, strict=True))
    # No two ranks have the same place.
    assert len(set(zip(local, cross, strict=True))) == size
    assert world.is_homogeneous() == (len(set(locals_)) == 1)


def test_global_process_set(size):
    everybody = process_sets.global_process_set
    assert everybody.process_set_id == 0 and everybody.ranks == list(range(size))
    assert everybody.included() and everybody.rank() == topology.rank()
    assert everybody.size() == size


def test_init_twice_changes_nothing(rank, size):
    tfring.init()
    assert (tfring.rank(), tfring.size()) == (rank, size)


def test_leave_and_join_again(rank, size):
    """A shutdown right after a collective cancels it on no rank."""
    for _ in range(10):
        tfring.shutdown()
        assert not tfring.is_initialized()
        tfring.init()
        assert (tfring.rank(), tfring.size()) == (rank, size)
        tfring.barrier()
        assert gathered(rank, "again") == list(range(size))
