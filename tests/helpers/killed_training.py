"""A non-elastic training without TensorFlow: run as ``killed_training.py FOLDER SETTINGS``.

It runs and logs the steps of `benchmarks.elastic.worker`. Rank 0 saves a checkpoint after every few
steps, and all ranks go on from the newest one when they start again.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

import tfring as hvd
from benchmarks.elastic.worker import Log, Settings, hash_of, value_of
from tfring.checkpoint import Checkpointer
from tfring.runtime._native import core

STEPS_PER_CHECKPOINT = 5
_SUM = 1


def newest(checkpoints: Checkpointer) -> tuple[int, str]:
    """Returns the step and the hash of rank 0's newest checkpoint, on all ranks."""
    found = checkpoints.load() if hvd.rank() == 0 else None
    numbers = np.zeros(9, np.int64)
    if found is not None:
        numbers = np.array([found.info.step, *bytes.fromhex(str(found.info.metadata["history"]))])
    numbers = core.broadcast(numbers, name="newest", root=0)
    step = int(numbers[0])
    return step, bytes(numbers[1:].tolist()).hex() if step else ""


def train(log: Log, settings: Settings, checkpoints: Checkpointer) -> None:
    """Trains to the last step."""
    size, rank, samples = hvd.size(), hvd.rank(), settings.samples
    step, history = newest(checkpoints)
    log("train", step=step, history=history, weights=0.0, members=[], fds=0)
    while step < settings.steps:
        epoch, consumed = divmod(step * settings.batch, samples)
        end = consumed + settings.batch
        low, high = (consumed + settings.batch * r // size for r in (rank, rank + 1))
        time.sleep((high - low) * settings.row_seconds)
        mine = np.array([value_of(epoch, low, high, samples), step], np.int64)
        together = core.allreduce(mine, name="gradient", op=_SUM)
        value = value_of(epoch, consumed, end, samples)
        if together.tolist() != [value, size * step]:
            raise AssertionError(f"rank {rank}: step {step} gave {together}, and not {value}")
        history, step = hash_of(history, epoch, consumed, value), step + 1
        place = {"epoch": epoch, "all": [consumed, end], "mine": [low, high]}
        log("commit", step=step, history=history, **place)
        if rank == 0 and step % STEPS_PER_CHECKPOINT == 0:
            state = {"weights": np.zeros(100)}
            checkpoints.save(state, step, metadata={"history": history})
            log("saved", step=step)
    log("end", step=step, history=history)


def main() -> None:
    folder, settings = Path(sys.argv[1]), Settings(**json.loads(sys.argv[2]))
    hvd.init()
    life = 10 * int(os.environ["ATTEMPT"]) + int(os.environ["TFRING_X_RESTART_COUNT"])
    log = Log(folder, 100 * life + hvd.rank())
    log.common = {"g": life, "rank": hvd.rank(), "size": hvd.size()}
    log("up", pid=os.getpid())
    with Checkpointer(folder / "checkpoints", asynchronous=False) as checkpoints:
        train(log, settings, checkpoints)


if __name__ == "__main__":
    main()
