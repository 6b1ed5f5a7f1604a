"""Every collective, dtype, shape and mode, among all ranks and in process sets: values, gradients.

The rows of one collective share one trace, which keeps this fast.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import matrix
import matrix_cells
import pytest
from matrix import Mode, Team
from matrix_rows import COLLECTIVES, ROWS

from tfring.ops import library


@pytest.fixture(scope="module")
def teams() -> Iterator[dict[str, Team]]:
    """All ranks; and two process sets at the same time, of every other rank."""
    with matrix_cells.teams() as made:
        yield made


# With another number of ranks eager calls give values and gradients at the least cost. Shapes that
# XLA compiles depend on the number, too.
QUICK = {("all", "eager"), ("all", "function"), ("all", "jit"), ("halves", "eager")}
ANY_RANKS = {("all", "eager"), ("halves", "eager"), ("halves", "function"), ("halves", "jit")}


def ways() -> Iterator[Any]:
    """Every team with every mode."""
    for team, mode in itertools.product(("all", "halves"), matrix.MODES):
        marks = [] if (team, mode.name) in QUICK else [pytest.mark.slow]
        marks += [pytest.mark.any_ranks] if (team, mode.name) in ANY_RANKS else []
        yield pytest.param(team, mode, marks=marks, id=f"{team}-{mode.name}")


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize(("team", "mode"), list(ways()))
def test_matrix(team: str, mode: Mode, collective: str, teams: dict[str, Team]) -> None:
    rows = [row for row in ROWS if row.collective == collective and mode.takes(row)]
    if not rows:
        pytest.skip("this mode does not take it")
    cells = [
        matrix_cells.Cell(row, dtype, teams[team], differentiated=mode.differentiated)
        for row in rows
        for dtype in row.dtypes
        if team == "all" or dtype in matrix.FEW
    ]

    def build(tensors: list[Any]) -> list[tuple[list[Any], list[Any]]]:
        rest = iter(tensors)
        return [cell.build([next(rest) for _ in cell.inputs]) for cell in cells]

    got = mode.run(build, [x for cell in cells for x in cell.inputs])
    for cell, (results, gradients) in zip(cells, got, strict=True):
        cell.check(results, gradients)


def test_the_table_is_complete() -> None:
    """The table has every op of the library that takes tensors from all ranks."""
    names = {name.removesuffix("_eager_fallback") for name in dir(library.load())}
    ops = {name.removeprefix("tfring_") for name in names if name.startswith("tfring_")}
    topology = {f"{which}{what}" for which in ("", "local_", "cross_") for what in ("rank", "size")}
    others = {
        "chain",
        "channel",
        "scaled",
        "step_guard",
        "process_set_included",
        "join",
        "barrier",
        "send",
        "recv",
        "allreduce_start",
        "allreduce_done",
    }  # in tests of their own
    assert ops - topology - others <= set(COLLECTIVES)
    assert {"grouped_allreduce", "grouped_allgather", "grouped_reducescatter"} <= set(COLLECTIVES)
    assert {row.dtypes for row in ROWS if row.collective == "alltoall"} == {matrix.MOVABLE}
