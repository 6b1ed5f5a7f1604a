"""Cells of the table of collectives (matrix_cells.py) with tensors in GPU memory.

On the fake driver TensorFlow's own kernels compute nothing on a GPU. There, tensors are
made on the CPU and copied, and only gradients that consist of collectives alone are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fake_cuda
import matrix
import matrix_cells
import tensorflow as tf
from matrix import Team
from matrix_rows import ROWS

# By collective, the variants whose gradients consist of collectives alone.
PURE_GRADIENTS = {
    "allreduce": ("Sum", "Average", "scaled"),
    "grouped_allreduce": ("Sum", "Average", "scaled"),
    "alltoall": ("equal", "uneven"),
}
# TensorFlow keeps int32 tensors of GPU ops in host memory.
ON_HOST = (tf.int32,)


def on_gpu(array: Any) -> Any:
    """A tensor in the memory of GPU:0."""
    with tf.device("CPU:0"):
        host = tf.constant(array)
    with tf.device("GPU:0"):
        return tf.identity(host)


def eagerly(function: Callable[..., Any], tensors: list[Any]) -> Any:
    return function(tensors)


def in_function(function: Callable[..., Any], tensors: list[Any]) -> Any:
    return tf.function(function)(tensors)


MODES = {"eager": eagerly, "function": in_function}


class GpuCell(matrix_cells.Cell):
    """A cell whose tensors and results are on GPU:0."""

    def build(self, tensors: list[Any]) -> tuple[list[Any], list[Any]]:
        if not fake_cuda.is_driver():
            return super().build(tensors)
        if self.row.variant not in PURE_GRADIENTS.get(self.row.collective, ()):
            self.gradients = None
        if self.gradients is None:
            return self.call(tensors), []
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            results = self.call(tensors)
        upstream = [
            on_gpu(weight.astype(matrix.dtype_of(self.dtype)))
            for weight, result in zip(self.weights[self.team.position], results, strict=True)
            if not result.dtype.is_integer
        ]
        results_with_gradient = [y for y in results if not y.dtype.is_integer]
        return results, tape.gradient(results_with_gradient, tensors, output_gradients=upstream)

    def check_places(self, results: list[Any]) -> None:
        label = f"{self.row.collective} {self.row.variant} {self.dtype}"
        for result in results:
            want = "CPU:0" if result.dtype in ON_HOST else "GPU:0"
            assert result.backing_device.endswith(want), f"{label} is on {result.backing_device}"


def cells_of(collective: str, team: Team, everything: bool) -> list[GpuCell]:
    """All rows of a collective, with all their dtypes or with a few."""
    return [
        GpuCell(row, dtype, team)
        for row in ROWS
        if row.collective == collective
        for dtype in row.dtypes
        if everything or dtype in matrix.FEW
    ]


def check_cells(cells: list[GpuCell], mode: str) -> int:
    """Runs cells in one function and compares values, gradients and devices.

    Returns:
        The number of results and gradients compared.
    """

    def build(tensors: list[Any]) -> list[tuple[list[Any], list[Any]]]:
        rest = iter(tensors)
        return [cell.build([next(rest) for _ in cell.inputs]) for cell in cells]

    got = MODES[mode](build, [on_gpu(x) for cell in cells for x in cell.inputs])
    compared = 0
    for cell, (results, gradients) in zip(cells, got, strict=True):
        # TensorFlow decides where its own gradients are.
        cell.check_places([*results, *(gradients if fake_cuda.is_driver() else [])])
        cell.check(results, gradients)
        compared += len(results) + len(gradients)
    return compared
