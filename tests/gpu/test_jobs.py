"""tests/parallel/gpu under mpirun on the doubles of the CUDA driver and NCCL.

Each rank has a GPU of its own. With GPU_OPERATIONS=nccl a collective that NCCL can run copies
nothing between GPU and host, and the double of the driver counts it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gpu_double
import pytest

# Every rank's GPU has another UUID, as on a machine where each rank has its own.
OWN_GPU = 'export FAKE_CUDA_UUID=$((OMPI_COMM_WORLD_RANK + 1)); exec "$@"'
NCCL = "libnccl.so.2"
TIMEOUT = 600


def run_job(ranks: int, *arguments: str, operations: str, **settings: int) -> None:
    """Runs pytest on files of tests/parallel/gpu as one job of several ranks."""
    env = gpu_double.environment(**settings)
    library = gpu_double.doubles() / NCCL
    if not Path(library).is_file():
        pytest.skip(f"no {library}: run `make build`")
    # tests/parallel hides GPUs unless something is set.
    env.update(CUDA_VISIBLE_DEVICES="0", TFRING_NCCL_LIBRARY=str(library))
    env.update(TFRING_GPU_OPERATIONS=operations)
    launch = [str(gpu_double.ROOT / "tools" / "mpi_run.sh"), str(ranks), "bash", "-c", OWN_GPU, "_"]
    test = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--color=no"]
    result = subprocess.run(
        [*launch, *test, *arguments],
        cwd=gpu_double.ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-6000:]
    assert "TensorFlow sees no GPU" not in result.stdout, result.stdout[-2000:]


@pytest.mark.parametrize(("ranks", "operations"), [(1, "host"), (2, "nccl"), (3, "host")])
def test_the_whole_matrix(ranks: int, operations: str) -> None:
    """Of three ranks also the process sets; on streams that run late in random order."""
    chosen = "" if ranks > 2 else "not halves"  # each half of two ranks has one rank
    matrix = "tests/parallel/gpu/test_gpu_matrix.py"
    run_job(ranks, matrix, "-k", chosen, operations=operations, seed=5, delay_us=200)


@pytest.mark.parametrize("operations", ["host", "nccl"])
def test_placement_errors_and_training(operations: str) -> None:
    files = [f"tests/parallel/gpu/test_gpu_{what}.py" for what in ("placement", "training", "xla")]
    run_job(2, *files, operations=operations)
