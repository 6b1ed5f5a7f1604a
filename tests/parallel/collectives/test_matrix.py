"""Every collective, dtype, shape and mode, among all ranks and in process sets: values, gradients.

The rows of one collective share one trace, which keeps this fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import matrix
import numpy as np
import pytest
import tensorflow as tf
from matrix import Arrays, Mode, Row, Team
from matrix_rows import COLLECTIVES, ROWS

import tfring
from tfring.ops import library

TOLERANCES = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-6, "float64": 1e-14}


@pytest.fixture(scope="module")
def teams() -> Iterator[dict[str, Team]]:
    """All ranks; and two process sets at the same time, of every other rank."""
    rank, size = tfring.rank(), tfring.size()
    everybody = Team(tuple(range(size)), tfring.global_process_set, rank)
    if size == 1:
        yield {"all": everybody, "halves": everybody}
        return
    sets = [tfring.add_process_set(list(range(first, size, 2))) for first in (0, 1)]
    mine = sets[rank % 2]
    half = Team(tuple(mine.ranks), mine, mine.rank())
    yield {"all": everybody, "halves": half}
    for process_set in sets:
        assert tfring.remove_process_set(process_set)


class Cell:
    """A row with one dtype: the inputs, and the results that this rank has to get."""

    def __init__(
        self, row: Row, dtype: str, team: Team, around: Callable[..., list[Any]] = matrix.directly
    ) -> None:
        self.row, self.dtype, self.team, self.around = row, dtype, team, around
        self.xs = [
            [
                matrix.value(dtype, shape, seed=100 * p + i)
                for i, shape in enumerate(row.shapes(p, team))
            ]
            for p in range(team.size)
        ]
        self.results = row.want(self.xs, team)
        self.gradients: Arrays | None = None
        if row.gradient is not None and dtype in matrix.DIFFERENTIATED:
            self.weights = matrix.gradients_of_results(self.results)
            gradients = row.gradient(self.xs, self.weights, team)
            self.gradients = gradients[team.position]

    @property
    def inputs(self) -> Arrays:
        return self.xs[self.team.position]

    def call(self, tensors: list[Any]) -> list[Any]:
        """The results."""
        like = [
            np.asarray(want).astype(np.int32 if i else matrix.dtype_of(self.dtype))
            if self.row.collective == "alltoall"
            else np.asarray(want).astype(matrix.dtype_of(self.dtype))
            for i, want in enumerate(self.results[self.team.position])
        ]
        return self.around(lambda xs: self.row.call(xs, self.team), tensors, like)

    def build(self, tensors: list[Any]) -> tuple[list[Any], list[Any]]:
        """The results, and the gradients of the weighted sum of them."""
        if self.gradients is None:
            return self.call(tensors), []
        weights = self.weights[self.team.position]
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            results = self.call(tensors)
            loss = 0.0
            for y, weight in zip(results, weights, strict=True):
                if not y.dtype.is_integer:
                    real = tf.math.real(y) if y.dtype.is_complex else y
                    loss += tf.reduce_sum(real * tf.constant(weight, real.dtype))
        return results, tape.gradient(loss, tensors)

    def check(self, results: Arrays, gradients: Arrays) -> None:
        label = f"{self.row.collective} {self.row.variant} {self.dtype}"
        wanted = self.results[self.team.position]
        for got, want in zip(results, wanted, strict=True):
            array = matrix.numpy_of(got)
            if array.dtype != np.int32:  # received splits
                assert array.dtype == matrix.dtype_of(self.dtype), label
            assert array.shape == want.shape, label
            self._close(array, want, label, exact=self.row.exact)
        for got, want in zip(gradients, self.gradients or [], strict=True):
            array = matrix.numpy_of(got)
            assert array.shape == want.shape, label
            self._close(array, want, f"the gradient of {label}", exact=False)

    def _close(self, got: Any, want: Any, label: str, *, exact: bool) -> None:
        tolerance = 0.0 if exact else TOLERANCES.get(self.dtype, 2e-6)
        np.testing.assert_allclose(
            matrix.wide(got), matrix.wide(want), rtol=tolerance, atol=tolerance, err_msg=label
        )


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("mode", matrix.MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("team", ["all", "halves"])
def test_matrix(team: str, mode: Mode, collective: str, teams: dict[str, Team]) -> None:
    rows = [row for row in ROWS if row.collective == collective and mode.takes(row)]
    if not rows:
        pytest.skip("this mode does not take it")
    cells = [
        Cell(row, dtype, teams[team])
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


@pytest.mark.parametrize("around", sorted(matrix.CONTROL_FLOW))
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize(("team", "dtype"), [("all", "float32"), ("halves", "complex64")])
def test_matrix_inside_control_flow(
    team: str, dtype: str, around: str, collective: str, teams: dict[str, Team]
) -> None:
    """Values and gradients through a loop and through a condition."""
    if team == "halves" and tfring.size() < 3:
        pytest.skip("each half has one rank")
    make = matrix.CONTROL_FLOW[around]
    cells = [
        Cell(row, dtype if dtype in row.dtypes else "float32", teams[team], make)
        for row in ROWS
        if row.collective == collective
    ]

    def build(tensors: list[Any]) -> list[tuple[list[Any], list[Any]]]:
        rest = iter(tensors)
        return [cell.build([next(rest) for _ in cell.inputs]) for cell in cells]

    got = matrix.run_in_function(build, [x for cell in cells for x in cell.inputs])
    for cell, (results, gradients) in zip(cells, got, strict=True):
        cell.check(results, gradients)


def test_the_table_is_complete() -> None:
    """The table has every op of the library that takes tensors from all ranks."""
    names = {name.removesuffix("_eager_fallback") for name in dir(library.load())}
    ops = {name.removeprefix("tfring_") for name in names if name.startswith("tfring_")}
    topology = {f"{which}{what}" for which in ("", "local_", "cross_") for what in ("rank", "size")}
    others = {
        "channel",
        "step_guard",
        "process_set_included",
        "join",
        "barrier",
        "send",
        "recv",
    }  # in tests of their own
    assert ops - topology - others <= set(COLLECTIVES)
    assert {"grouped_allreduce", "grouped_allgather", "grouped_reducescatter"} <= set(COLLECTIVES)
    assert {row.dtypes for row in ROWS if row.collective == "alltoall"} == {matrix.MOVABLE}
