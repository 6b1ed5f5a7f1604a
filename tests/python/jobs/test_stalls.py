"""The messages to ranks that do not make the same calls. Whole jobs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from launcher_tools import REPORT, run, write_script

native = pytest.importorskip("tfring.runtime._native")

# Lines are found by the comments at their ends.
DIFFERENT_CALLS = """
import json
import tensorflow as tf
import tfring as hvd

hvd.init()
rank = hvd.rank()


def line(mark):
    text = open(sys.argv[0]).read().splitlines()
    return f"script.py:{1 + next(i for i, l in enumerate(text) if l.endswith('# ' + mark))}"


def refused(call, *parts):
    try:
        result = call()
    except tf.errors.FailedPreconditionError as error:
        assert all(part in str(error) for part in parts), str(error)
    else:
        raise AssertionError(f"paired: {result}")


def train(x):
    return hvd.allreduce(x)  # train


def validate(x):
    return hvd.allreduce(x)  # validate


for step in range(40):  # goes round the default names more than twice
    assert float(train(1.0 + rank)) == 1.5

# Rank 0 makes one call more: its 100 must not be averaged with the 1 of another line.
refused(
    lambda: validate(100.0) if rank == 0 else train(1.0),
    f"{line('validate')} on rank 0; {line('train')} on rank 1", "name='...'", "CALL_SITE_CHECK=0",
)
assert float(train(1.0 + rank)) == 1.5  # the job goes on

for kind in ("allgather", "alltoall", "reducescatter", "grouped_allreduce"):
    value = [tf.ones(2)] if kind.startswith("grouped") else tf.ones(2)
    if rank == 0:
        refused(lambda: getattr(hvd, kind)(value), "on rank 0; script.py:")
    else:
        refused(lambda: getattr(hvd, kind)(value), "on rank 0; script.py:")

# What may stand on two lines: calls with a name, or with a root, barriers, objects, functions.
if rank == 0:
    assert float(hvd.allreduce(1.0, name="named")) == 1.5
    assert float(hvd.broadcast(7.0, 0)) == 7.0
    hvd.barrier()
    assert hvd.allgather_object(rank) == [0, 1]
    assert float(tf.function(lambda: hvd.allreduce(1.0))()) == 1.5
else:
    assert float(hvd.allreduce(2.0, name="named")) == 1.5
    assert float(hvd.broadcast(0.0, 0)) == 7.0
    hvd.barrier()
    assert hvd.allgather_object(rank) == [0, 1]
    assert float(tf.function(lambda: hvd.allreduce(2.0))()) == 1.5


@tf.function(jit_compile=True)
def step(x):
    return hvd.allreduce(x, name="loss")  # step


def check():
    return hvd.allgather_object("weights")  # check


assert hvd.broadcast_object(rank) == 0
try:
    if rank == 0:
        step(tf.ones(2))
    else:
        check()
except tf.errors.OpError as error:
    report(f"end.{rank}", json.dumps([error.error_code, error.message]))
"""


def test_calls_that_do_not_fit_are_told_where(tmp_path: Path) -> None:
    """Calls without a name on different lines are not paired; circles end the job."""
    path = write_script(tmp_path, DIFFERENT_CALLS, header=REPORT)
    limits = {"TFRING_STALL_SHUTDOWN_TIME_SECONDS": "5", "TFRING_STALL_CHECK_TIME_SECONDS": "4"}
    done = run("-np", 2, sys.executable, path, tmp_path, **limits)
    lines = Path(path).read_text().splitlines()
    step, check = (
        f"script.py:{1 + next(i for i, text in enumerate(lines) if text.endswith(f'# {mark}'))}"
        for mark in ("step", "check")
    )
    loss = f"rank 0 waits in allreduce of tensor 'loss' ({step})"
    other = f"rank 1 waits in allgather of tensor 'tfring.allgather_object.size' ({check})"
    said = [line for line in done.stderr.splitlines() if "for each other" in line]
    while_it_lasts = [line for line in said if "warning: " in line]
    assert len(while_it_lasts) == 1, done.stderr  # the explanation speaks alone
    assert "These ranks have waited for each other for 3" in while_it_lasts[0]
    assert loss in while_it_lasts[0] and other in while_it_lasts[0]
    assert "The job ends in 2 s if nothing changes. `tfring explain" in while_it_lasts[0]
    assert "has waited 4" not in done.stderr
    for rank in range(2):
        code, message = json.loads((tmp_path / f"end.{rank}").read_text())
        assert code == 4, message  # DeadlineExceeded
        assert step in message and check in message


# While rank 0 warns of a stall, its stderr is not read, for longer than a rank may be silent before
# it counts as lost.
FULL_STDERR = """
    import os, time
    import numpy as np
    from tfring.runtime import topology
    from tfring import world
    from tfring.runtime._native import core

    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    try:
        while True:
            os.write(write_end, b"." * 512)
    except BlockingIOError:
        os.set_blocking(write_end, True)
    own = os.dup(2)
    if os.environ["TFRING_X_RANK"] == "0":
        os.dup2(write_end, 2)

    world.init()
    rank = topology.rank()
    core.barrier(name="begin")
    if rank == 1:
        time.sleep(5)
    total = core.allreduce(np.ones(4, np.float32), name="late", op=1)
    assert total.tolist() == [2.0] * 4, total
    if rank == 0:
        text = b""
        while b"late" not in text:  # a missing warning is a hang, which the test bounds
            text += os.read(read_end, 65536)
        os.dup2(own, 2)
        print("WARNED", text.decode().lstrip("."))
"""


def test_a_warning_that_nobody_reads_stops_no_rank(tmp_path: Path) -> None:
    path = write_script(tmp_path, FULL_STDERR)
    done = run(
        "-np",
        2,
        sys.executable,
        path,
        TFRING_STALL_CHECK_TIME_SECONDS="1",
        TFRING_HEARTBEAT_SECONDS="0.5",
        TFRING_HEARTBEAT_TIMEOUT_SECONDS="3",
    )
    assert done.returncode == 0, done.stderr
    assert "WARNED" in done.stdout and "Rank 1" in done.stdout, done.stdout
    assert "lost" not in done.stderr + done.stdout
