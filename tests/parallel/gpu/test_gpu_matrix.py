"""The table of collectives with tensors in GPU memory: values, gradients, and where results are."""

from __future__ import annotations

from collections.abc import Iterator

import gpu_cells
import matrix_cells
import pytest
import tensorflow as tf
from matrix import Team
from matrix_rows import COLLECTIVES

GPUS = tf.config.list_physical_devices("GPU")
pytestmark = pytest.mark.skipif(not GPUS, reason="TensorFlow sees no GPU; see tests/gpu")


@pytest.fixture(scope="module")
def teams() -> Iterator[dict[str, Team]]:
    """All ranks; and two process sets at the same time, of every other rank."""
    with matrix_cells.teams() as made:
        yield made


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("mode", sorted(gpu_cells.MODES))
@pytest.mark.parametrize("team", ["all", "halves"])
def test_matrix_on_gpu(team: str, mode: str, collective: str, teams: dict[str, Team]) -> None:
    cells = gpu_cells.cells_of(collective, teams[team], everything=team == "all")
    assert gpu_cells.check_cells(cells, mode) > 0
