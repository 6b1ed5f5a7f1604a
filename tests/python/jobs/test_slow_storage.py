"""A storage that is slower than the stall limit: whole jobs whose ranks wait for rank 0."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from launcher_tools import REPORT, run, write_script

pytest.importorskip("tfring._native")
pytest.importorskip("tensorflow")

SLOW = """
import time
import keras
import numpy as np
import tfring.keras as hvd
from tfring.checkpoint import Checkpointer, folders
from tfring.keras.callbacks.checkpoints.training_state import publish

hvd.init()
rank = hvd.rank()
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="d")])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")


def slow(name):
    real = getattr(folders.LocalFolder, name)

    def call(self, file, *arguments):
        if file.endswith(".npz"):
            time.sleep(4)
        return real(self, file, *arguments)

    setattr(folders.LocalFolder, name, call)


slow("write")
slow("open")
for asynchronous in (True, False):
    checkpoints = Checkpointer(f"{sys.argv[1]}/{asynchronous}", asynchronous=asynchronous)
    model.set_weights([np.full((2, 1), 7.0), np.zeros(1)])
    hvd.save_checkpoint(checkpoints, model, step=3, must=True)
    hvd.save_checkpoint(checkpoints, model, step=4, must=True)  # waits for the first one
    if asynchronous:
        publish(checkpoints)
    model.set_weights([np.full((2, 1), float(rank)), np.zeros(1)])
    position = hvd.restore_checkpoint(checkpoints, model)
    assert position.step == 4
    assert model.get_weights()[0].tolist() == [[7.0], [7.0]]
report(f"end.{rank}", "ok")
"""


def test_ranks_that_wait_for_the_storage_of_rank_0_are_not_stalled(tmp_path: Path) -> None:
    path = write_script(tmp_path, REPORT + SLOW)
    limits = {"TFRING_STALL_SHUTDOWN_TIME_SECONDS": "3", "TFRING_STALL_CHECK_TIME_SECONDS": "2"}
    done = run("-np", "2", sys.executable, path, str(tmp_path), **limits)
    assert done.returncode == 0, done.stderr
    assert "has waited" not in done.stdout + done.stderr, done.stderr
