"""The binding: whatever ranks get wrong ends with one typed error on all of them, and life goes on.

Every test makes the same mistake once with each rank as the odd one out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from native_cases import (
    AVERAGE,
    FAILED_PRECONDITION,
    INVALID_ARGUMENT,
    LIMIT,
    MAX,
    MIN,
    SUM,
    expect_error,
    process_set,
)

from tfring._native import core

X = np.ones((12, 2), np.float32)
Start = Callable[..., Any]

# A valid call of every kind that takes an array, the same on all ranks.
STARTS: dict[str, Start] = {
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
SPLITTING = ("alltoall", "scatter")
BY_ROWS = ("reducescatter", "allgather", "gather", "scatter", "alltoall")


@pytest.fixture(params=sorted(STARTS))
def kind(request: pytest.FixtureRequest) -> str:
    """Every kind of collective that takes an array."""
    return str(request.param)


def check_next(kind: str, name: str) -> None:
    """The same name works, at once, for a call that is right."""
    STARTS[kind](X, name=name)
    core.barrier(name=name)


def disagree(kind: str, rank: int, several: int, call: Callable[[bool, str], Any], *parts: str):
    """Expects FailedPrecondition everywhere for each odd rank, naming the tensor and the rank."""
    for odd in range(several):
        name = f"odd.{kind}.{odd}"
        expect_error(
            FAILED_PRECONDITION,
            lambda odd=odd, name=name: call(rank == odd, name),
            *(name, f"rank {odd}", *parts),
        )
        check_next(kind, name)


def test_dtypes(kind: str, rank: int, several: int) -> None:
    disagree(
        kind,
        rank,
        several,
        lambda odd, name: STARTS[kind](X.astype(np.float64) if odd else X, name=name),
        "float32",
        "float64",
    )


def test_shapes(kind: str, rank: int, several: int) -> None:
    other = np.ones((12, 3), np.float32)
    disagree(
        kind,
        rank,
        several,
        lambda odd, name: STARTS[kind](other if odd else X, name=name),
        "[12, 2]",
        "[12, 3]",
    )


def test_numbers_of_dimensions(kind: str, rank: int, several: int) -> None:
    flat = np.ones(12, np.float32)
    disagree(
        kind,
        rank,
        several,
        lambda odd, name: STARTS[kind](flat if odd else X, name=name),
        "[12, 2]",
        "[12]",
    )


@pytest.mark.parametrize("kind", ["allreduce", "reducescatter", "reduce", "broadcast"])
def test_numbers_of_rows(kind: str, rank: int, several: int) -> None:
    more = np.ones((24, 2), np.float32)
    disagree(
        kind,
        rank,
        several,
        lambda odd, name: STARTS[kind](more if odd else X, name=name),
        "[12, 2]",
        "[24, 2]",
    )


def test_kinds(kind: str, rank: int, several: int) -> None:
    disagree(
        kind,
        rank,
        several,
        lambda odd, name: core.barrier(name=name) if odd else STARTS[kind](X, name=name),
        kind,
        "barrier",
    )


@pytest.mark.parametrize("kind", REDUCING)
def test_ops_and_factors(kind: str, rank: int, several: int) -> None:
    for right, wrong, parts in [
        ({"op": MIN}, {"op": MAX}, ("Min", "Max")),
        ({"op": SUM}, {"op": AVERAGE}, ("Sum", "Average")),
        ({"prescale": 2.0}, {"prescale": 3.0}, ("2", "3")),
        ({"postscale": 2.0}, {"postscale": 0.5}, ("2", "0.5")),
    ]:
        disagree(
            kind,
            rank,
            several,
            lambda odd, name, right=right, wrong=wrong: STARTS[kind](
                X, name=name, **(wrong if odd else right)
            ),
            *parts,
        )


@pytest.mark.parametrize("kind", ROOTED)
def test_roots(kind: str, rank: int, several: int) -> None:
    disagree(
        kind,
        rank,
        several,
        lambda odd, name: STARTS[kind](X, name=name, root=1 if odd else 0),
        "root 0",
        "root 1",
    )


def refuse(kind: str, rank: int, several: int, call: Callable[[bool, str], Any], *parts: str):
    """Expects InvalidArgument everywhere for each odd rank, with the reason that it gave."""
    for odd in range(several):
        name = f"bad.{kind}.{odd}"
        expect_error(
            INVALID_ARGUMENT,
            lambda odd=odd, name=name: call(rank == odd, name),
            *(name, f"rank {odd}", *parts),
        )
        check_next(kind, name)


@pytest.mark.parametrize("kind", ROOTED)
def test_a_root_that_is_no_rank(kind: str, rank: int, several: int) -> None:
    refuse(
        kind,
        rank,
        several,
        lambda odd, name: STARTS[kind](X, name=name, root=several if odd else 0),
        f"root rank {several}",
    )


@pytest.mark.parametrize("kind", BY_ROWS)
def test_a_scalar_has_no_rows(kind: str, rank: int, several: int) -> None:
    scalar = np.float32(1)
    refuse(
        kind,
        rank,
        several,
        lambda odd, name: STARTS[kind](scalar if odd else X, name=name),
        "scalar",
    )


@pytest.mark.parametrize("kind", REDUCING)
def test_a_dtype_that_cannot_be_reduced(kind: str, rank: int, several: int) -> None:
    refuse(
        kind,
        rank,
        several,
        lambda odd, name: STARTS[kind](X.astype(bool) if odd else X, name=name),
        "bool",
    )


@pytest.mark.parametrize("kind", REDUCING)
def test_a_factor_that_is_no_number(kind: str, rank: int, several: int) -> None:
    refuse(
        kind,
        rank,
        several,
        lambda odd, name: STARTS[kind](X, name=name, prescale=np.inf if odd else 1.0),
        "prescale",
    )


def test_bad_splits_of_alltoall(rank: int, several: int) -> None:
    rest = [0] * (several - 2)
    good = [12, 0, *rest]
    for bad in ([12], [11, 0, *rest], [13, -1, *rest], [*good, 0]):
        refuse(
            "alltoall",
            rank,
            several,
            lambda odd, name, bad=bad: core.alltoall(X, bad if odd else good, name=name),
            "splits",
        )
    for rows in range(1, 2 * several):
        if rows % several:
            refuse(
                "alltoall",
                rank,
                several,
                lambda odd, name, rows=rows: core.alltoall(X[:rows] if odd else X, name=name),
                str(rows),
            )


def test_bad_splits_of_scatter(rank: int, several: int) -> None:
    rest = [0] * (several - 2)
    for root in range(several):
        for bad in ([12], [11, 0, *rest], [13, -1, *rest]):
            name = f"scatter.{root}"
            expect_error(
                INVALID_ARGUMENT,
                lambda bad=bad, root=root, name=name: core.scatter(X, bad, name=name, root=root),
                *(name, f"rank {root}", "splits"),
            )
            check_next("scatter", name)


def test_sends_that_do_not_fit(rank: int, several: int) -> None:
    """Only the two hear of it."""
    for told, dtype, parts in [
        ((3, 2), np.float32, ("[12, 2]", "[3, 2]")),
        ((-1,), np.float32, ("[12, 2]", "[-1]")),
        (None, np.int32, ("float32", "int32")),
    ]:
        if rank == 0:
            expect_error(FAILED_PRECONDITION, lambda: core.send(X, name="m", dest=1), *parts)
            core.send(X, name="m", dest=1)
        elif rank == 1:
            expect_error(
                FAILED_PRECONDITION,
                lambda told=told, dtype=dtype: core.recv(dtype, told, name="m", source=0),
                *parts,
            )
            np.testing.assert_array_equal(core.recv(np.float32, name="m", source=0), X)


def test_messages_that_go_nowhere_end_at_once(rank: int, several: int) -> None:
    for other in (rank, several, -1):
        expect_error(INVALID_ARGUMENT, lambda o=other: core.send(X, name="m", dest=o), f"{other}")
        expect_error(
            INVALID_ARGUMENT, lambda o=other: core.recv("float32", name="m", source=o), f"{other}"
        )


def test_sets_that_do_not_exist(kind: str, rank: int, size: int) -> None:
    expect_error(
        INVALID_ARGUMENT, lambda: STARTS[kind](X, name="x", process_set=7), "process set 7"
    )
    check_next(kind, "x")


def test_sets_of_other_ranks(kind: str, rank: int, several: int) -> None:
    with process_set([several - 1]) as last:
        if rank != several - 1:
            expect_error(
                INVALID_ARGUMENT,
                lambda: STARTS[kind](X, name="x", process_set=last),
                *(f"rank {rank}", f"process set {last}"),
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
            waiting.wait(LIMIT)
    expect_error(
        INVALID_ARGUMENT,
        lambda: core.barrier(name="late", process_set=number),
        f"process set {number}",
    )
