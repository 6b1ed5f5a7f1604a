"""Runs and compares a row of the table with one dtype, in all ranks and in process sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matrix
import numpy as np
import tensorflow as tf
from matrix import Arrays, Row, Team

import tfring

TOLERANCES = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-6, "float64": 1e-14}


@contextmanager
def teams() -> Iterator[dict[str, Team]]:
    """All ranks; and two process sets at the same time, of the even and of the odd ranks."""
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
    """A row with one dtype: the inputs and the expected results of this rank."""

    def __init__(
        self,
        row: Row,
        dtype: str,
        team: Team,
        differentiated: Sequence[str] = matrix.DIFFERENTIATED,
    ) -> None:
        self.row, self.dtype, self.team = row, dtype, team
        self.xs = [
            [
                matrix.value(dtype, shape, seed=100 * p + i)
                for i, shape in enumerate(row.shapes(p, team))
            ]
            for p in range(team.size)
        ]
        self.results = row.want(self.xs, team)
        self.gradients: Arrays | None = None
        if row.gradient is not None and dtype in differentiated:
            self.weights = matrix.gradients_of_results(self.results)
            gradients = row.gradient(self.xs, self.weights, team)
            self.gradients = gradients[team.position]

    @property
    def inputs(self) -> Arrays:
        return self.xs[self.team.position]

    def call(self, tensors: list[Any]) -> list[Any]:
        """Calls the collective; returns its results."""
        return self.row.call(tensors, self.team)

    def build(self, tensors: list[Any]) -> tuple[list[Any], list[Any]]:
        """The results, and the gradients of their weighted sum."""
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
            assert array.dtype == matrix.dtype_of(self.dtype), label
            assert array.shape == want.shape, label
            self._close(array, want, f"the gradient of {label}", exact=False)

    def _close(self, got: Any, want: Any, label: str, *, exact: bool) -> None:
        tolerance = 0.0 if exact else TOLERANCES.get(self.dtype, 2e-6)
        np.testing.assert_allclose(
            matrix.wide(got), matrix.wide(want), rtol=tolerance, atol=tolerance, err_msg=label
        )
