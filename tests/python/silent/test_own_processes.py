"""Silent mistakes of which only a whole process, or a whole job, can be told."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

_TRAINS = """
import keras
import numpy as np
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((8, 2)), np.ones((8, 1)), verbose=0)
"""


def _ends(command: list[str], **environment: str) -> tuple[int, str]:
    """Returns the exit code and what the processes have written to their error output."""
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    ended = subprocess.run(
        command,
        env={**os.environ, **quiet, **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )
    return ended.returncode, ended.stderr


def _job(program: str, *options: str) -> tuple[int, str]:
    return _ends(
        [sys.executable, "-m", "tfring", "run", "-np", "2", *options, sys.executable, "-c", program]
    )


@pytest.mark.parametrize(
    "entry",
    [
        "import tfring.keras",
        pytest.param(
            "import tfring as h; h.init(); h.DistributedOptimizer(None)", marks=pytest.mark.slow
        ),
        pytest.param(
            "import tfring as h; h.init(); h.SyncBatchNormalization()", marks=pytest.mark.slow
        ),
    ],
)
@pytest.mark.parametrize("backend", ["jax", pytest.param("torch", marks=pytest.mark.slow)])
def test_another_backend_of_keras_is_an_error_at_every_entry(entry: str, backend: str) -> None:
    code, said = _ends([sys.executable, "-c", entry], KERAS_BACKEND=backend)
    assert code != 0
    assert f"KERAS_BACKEND={backend}" in said or (backend in said and "tensorflow" in said), said


def test_a_job_of_which_no_process_called_init_is_told_so() -> None:
    code, said = _job(_TRAINS)
    assert code == 0
    assert re.search(r"init\(\)", said) and "2" in said, said


def test_a_job_for_horovod_without_horovod_is_told_so() -> None:
    program = "import os; print(os.environ.get('OMPI_COMM_WORLD_SIZE', 1))"
    code, said = _job(program)
    assert code == 0
    assert "--horovod" in said and re.search(r"init\(\)", said), said


@pytest.mark.slow
def test_a_job_that_calls_init_only_is_told_so() -> None:
    code, said = _job("import tfring as hvd; hvd.init()" + _TRAINS)
    assert code == 0
    assert "DistributedOptimizer" in said, said


@pytest.mark.slow
def test_a_job_that_only_computes_is_left_alone() -> None:
    """Collectives and no training: a right program, without a word."""
    code, said = _job("import tfring as hvd; hvd.init(); hvd.allgather_object(hvd.rank())")
    assert code == 0
    assert "[tfring]" not in said and "rank 0" not in said and "rank 1" not in said, said


@pytest.mark.slow
def test_a_job_of_one_rank_is_left_alone() -> None:
    one = [sys.executable, "-m", "tfring", "run", "-np", "1", sys.executable, "-c"]
    code, said = _ends([*one, "import tfring as hvd; hvd.init()" + _TRAINS])
    assert code == 0
    assert "Distributed" not in said and "init()" not in said, said
