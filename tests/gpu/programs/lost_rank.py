"""Rank 1 is killed while the others' allreduces wait for it on their GPUs.

Each survivor writes a file into the folder that the first argument names: the class and the message
of its error, the seconds since the kill, and the class of the error of the next call. Its exit code
is 3.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import fake_cuda
import numpy as np
import tensorflow as tf

import tfring

VICTIM = 1


@tf.function
def step(tensor: Any) -> Any:
    return [tfring.allreduce(tensor, op=tfring.Sum, name=f"step.{i}") for i in range(3)]


def error_of(tensor: Any) -> Exception:
    try:
        while True:
            for result in step(tensor):
                result.numpy()
    except tf.errors.OpError as error:
        return error


tfring.init()
with tf.device("CPU:0"):
    host = tf.constant(np.ones(1000, "f4"))
with tf.device("GPU:0"):
    on_gpu = tf.identity(host)
step(on_gpu)
tfring.barrier()
killed = Path(sys.argv[1]) / "killed"


def die() -> None:
    killed.write_text(str(time.time()))
    os.kill(os.getpid(), signal.SIGKILL)


if tfring.rank() == VICTIM:
    # Its GPU starts nothing more, so the kernels of the others wait for it.
    fake_cuda.set_value("hold", 1)
    threading.Timer(0.5, die).start()
    step(on_gpu)
first = error_of(on_gpu)
seconds = time.time() - float(killed.read_text())
then = error_of(on_gpu)
report = [type(first).__name__, str(first), seconds, type(then).__name__]
(Path(sys.argv[1]) / f"rank{tfring.rank()}").write_text(json.dumps(report))
print(f"rank {tfring.rank()} ends")  # into the buffer of Python's stdout, if that is a pipe
sys.exit(3)
