"""Storage that is slower than the stall limit: whole jobs whose ranks wait for rank 0."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from launcher_tools import REPORT, run, write_script

pytest.importorskip("tfring.runtime._native")
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
checkpoints = Checkpointer(f"{sys.argv[1]}/checkpoints")
model.set_weights([np.full((2, 1), 7.0), np.zeros(1)])
hvd.save_checkpoint(checkpoints, model, step=3)
hvd.save_checkpoint(checkpoints, model, step=4, must=True)  # waits for the first one
publish(checkpoints)
model.set_weights([np.full((2, 1), float(rank)), np.zeros(1)])
position = hvd.restore_checkpoint(checkpoints, model)
assert position.step == 4
assert model.get_weights()[0].tolist() == [[7.0], [7.0]]
report(f"end.{rank}", "ok")
"""


def test_ranks_that_wait_for_the_storage_of_rank_0_are_not_stalled(tmp_path: Path) -> None:
    path = write_script(tmp_path, SLOW, header=REPORT)
    limits = {"TFRING_STALL_SHUTDOWN_TIME_SECONDS": "3", "TFRING_STALL_CHECK_TIME_SECONDS": "2"}
    done = run("-np", "2", sys.executable, path, str(tmp_path), **limits)
    assert done.returncode == 0, done.stderr
    assert "has waited" not in done.stdout + done.stderr, done.stderr


# The disk is full from the first to the fourth attempt at a checkpoint, on whichever rank writes.
FULL = """
import errno, glob
import numpy as np
import keras
import tfring.keras as hvd
from tfring.checkpoint import Checkpointer, folders, retries

retries.FIRST_DELAY = 0.01
hvd.init()
folder = f"{sys.argv[1]}/checkpoints"
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
real = folders.LocalFolder.write


def write(self, file, fill):
    tries = f"{sys.argv[1]}/try.{os.getpid()}"
    open(f"{tries}.{len(glob.glob(tries + '.*'))}", "w").close()
    if len(glob.glob(f"{sys.argv[1]}/try.*")) < 5:
        raise OSError(errno.ENOSPC, "No space left on device")
    return real(self, file, fill)


folders.LocalFolder.write = write
x, y = np.ones((32, 2), np.float32), np.ones((32, 1), np.float32)
hvd.elastic.fit(model, (x, y), epochs=3, policy=8, verbose=0, checkpoint=folder)
report(f"end.{hvd.rank()}.of.{hvd.size()}", Checkpointer(folder).latest().step)
"""


@pytest.mark.slow
def test_a_disk_that_is_full_for_a_while_ends_no_rank(tmp_path: Path) -> None:
    path = write_script(tmp_path, FULL, header=REPORT)
    done = run("-np", 2, "--min-np", 1, sys.executable, path, tmp_path)
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        assert (tmp_path / f"end.{rank}.of.2").read_text() == "12\n", done.stderr
    assert "is not written to" in done.stderr and "No space left on device" in done.stderr
