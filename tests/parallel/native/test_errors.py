"""The binding: mistakes that TensorFlow's ops cannot make, and those about process sets.

All others are in collectives/test_errors.py. Most tests make the same mistake once with each rank
as the odd one out: every rank gets one typed error, and the next call of that name works.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from native_cases import (
    FAILED_PRECONDITION,
    INVALID_ARGUMENT,
    SUM,
    expect_error,
    process_set,
)

from tfring.runtime._native import core

pytestmark = pytest.mark.any_ranks

X = np.ones((12, 2), np.float32)

# A valid call of every kind that takes an array, the same on all ranks.
STARTS: dict[str, Callable[..., Any]] = {
    "allreduce": lambda x, op=SUM, **k: core.allreduce(x, op=op, **k),
    "reducescatter": lambda x, op=SUM, **k: core.reducescatter(x, op=op, **k),
    "reduce": lambda x, op=SUM, root=0, **k: core.reduce(x, op=op, root=root, **k),
    "allgather": lambda x, **k: core.allgather(x, **k),
    "gather": lambda x, root=0, **k: core.gather(x, root=root, **k),
    "broadcast": lambda x, root=0, **k: core.broadcast(x, root=root, **k),
    "scatter": lambda x, root=0, **k: core.scatter(x, root=root, **k),
    "alltoall": lambda x, **k: core.alltoall(x, **k),
}
REDUCING = ("allreduce", "reducescatter", "reduce")
ROOTED = ("reduce", "gather", "broadcast", "scatter")


@pytest.fixture(params=sorted(STARTS))
def kind(request: pytest.FixtureRequest) -> str:
    """Every kind of collective that takes an array."""
    return str(request.param)


def check_next(kind: str, name: str) -> None:
    """A right call with the same name works at once."""
    STARTS[kind](X, name=name)
    core.barrier(name=name)


def test_kinds(kind: str, rank: int, several: int) -> None:
    for odd in range(several):
        name = f"odd.{kind}.{odd}"
        call = (
            partial(core.barrier, name=name) if rank == odd else partial(STARTS[kind], X, name=name)
        )
        expect_error(FAILED_PRECONDITION, call, name, f"rank {odd}", kind, "barrier")
        check_next(kind, name)


@pytest.mark.parametrize("kind", REDUCING)
def test_what_cannot_be_reduced(kind: str, rank: int, several: int) -> None:
    """One rank's wrong dtype or factor is an error on every rank, with that rank's reason."""
    for odd in range(several):
        name = f"bad.{kind}.{odd}"
        flags = partial(STARTS[kind], X.astype(bool) if rank == odd else X, name=name)
        expect_error(INVALID_ARGUMENT, flags, name, f"rank {odd}", "bool")
        scaled = partial(STARTS[kind], X, name=name, prescale=np.inf if rank == odd else 1.0)
        expect_error(INVALID_ARGUMENT, scaled, name, f"rank {odd}", "prescale")
        check_next(kind, name)


def test_sets_of_other_ranks(kind: str, rank: int, several: int) -> None:
    with process_set([several - 1]) as last:
        if rank != several - 1:
            expect_error(
                INVALID_ARGUMENT,
                lambda: STARTS[kind](X, name="x", process_set=last),
                f"rank {rank}",
                f"process set {last}",
            )
        elif kind in ROOTED:
            expect_error(
                INVALID_ARGUMENT,
                lambda: STARTS[kind](X, name="x", process_set=last),
                "root rank 0",
            )


def test_process_sets_that_cannot_be(rank: int, several: int) -> None:
    for bad in ([], [0, several], [-1], [0, 0]):
        expect_error(INVALID_ARGUMENT, lambda bad=bad: core.add_process_set(bad))
    expect_error(
        INVALID_ARGUMENT, lambda: core.add_process_set(list(range(several))), "registered already"
    )
    for odd in range(several):
        expect_error(
            FAILED_PRECONDITION,
            lambda odd=odd: core.add_process_set([1 if rank == odd else 0]),
            f"rank {odd}",
        )
    assert list(core.process_sets()) == [0]


def test_process_sets_that_cannot_go(rank: int, several: int) -> None:
    for number in (0, 5, -3):
        expect_error(INVALID_ARGUMENT, lambda number=number: core.remove_process_set(number))
    with process_set([0]) as first, process_set([1]) as second:
        expect_error(
            FAILED_PRECONDITION,
            lambda: core.remove_process_set(first if rank else second),
            "rank 0",
        )
        assert len(core.process_sets()) == 3


def test_a_removed_set_ends_what_waits_in_it(rank: int, several: int) -> None:
    number = core.add_process_set([0, 1] if several > 2 else [1])
    waiting = None
    if several > 2 and rank == 1:
        waiting = core.allreduce_async(X, name="lonely", op=SUM, process_set=number)
    core.remove_process_set(number)
    if waiting is not None:
        with pytest.raises(core.CoreError, match="lonely"):
            waiting.wait()
    expect_error(
        INVALID_ARGUMENT,
        lambda: core.barrier(name="late", process_set=number),
        f"process set {number}",
    )
