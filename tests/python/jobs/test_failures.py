"""What happens to the other ranks when one is lost. Whole jobs, killed by the test.

Only `make soak` measures how soon they get the error, on an otherwise idle machine.
TFRING_TEST_RESIDENT_GIB=4 gives the lost rank the largest memory for which the limit is promised.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import pytest
from launcher_tools import (
    AS_ROOT,
    LIMIT_SECONDS,
    REPORT,
    alive,
    open_mpi_command,
    pids_in,
    run,
    start,
    start_command,
    write_script,
)

native = pytest.importorskip("tfring.runtime._native")

RESIDENT_GIB = float(os.environ.get("TFRING_TEST_RESIDENT_GIB", "1"))
# The limit in seconds from the kill to the error on each survivor, on an idle machine.
RAISE_SECONDS = 1.0
# By default a silent rank counts as lost after half a minute. Survivors
# learn of a killed one from its connections.
SILENT = "heartbeat"
UNAVAILABLE = 14

SCRIPT = """
    import json, os, subprocess, sys, time
    import numpy as np
    from tfring.runtime import topology
    from tfring import world
    from tfring.runtime._native import core

    victim, gib, forks = int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
    world.init()
    rank = topology.rank()

    if rank == victim:
        ballast = np.ones(int(gib * (1 << 27)))
    if forks == "forks":
        null = subprocess.DEVNULL  # mpirun waits for the end of its ranks' output
        subprocess.Popen(["sleep", "20"], start_new_session=True, stdout=null, stderr=null)
        if os.fork() == 0:
            os.setsid()
            for fd in range(3):
                os.close(fd)
            time.sleep(20)
            os._exit(0)
    values = np.ones(1 << 18, np.float32)
    try:
        for step in range(1 << 30):
            assert core.allreduce(values, name="step", op=1)[-1] == topology.size()
            if step == 10:
                report(f"pid.{rank}", os.getpid())
    except core.CoreError as error:
        now = time.monotonic()
        report(f"end.{rank}", json.dumps([now, error.code, error.message]))
        raise
"""


def signal_victim(folder, job, victim, size, number=signal.SIGKILL):
    """Sends a signal to one rank and checks the errors of the others.

    Returns:
        stderr, the processes, and the seconds from the signal to the last error.
    """
    pids = pids_in(folder, size)
    sent_at, last = time.monotonic(), 0.0
    os.kill(pids[str(victim)], number)
    _, err = job.communicate(timeout=LIMIT_SECONDS)
    for rank in (r for r in range(size) if r != victim):
        end = folder / f"end.{rank}"
        assert end.exists(), f"rank {rank} did not get to its error:\n{err}"
        seen_at, code, message = json.loads(end.read_text())
        assert code == UNAVAILABLE, (rank, code, message)
        assert f"rank {victim} (host " in message, (rank, message)
        assert (SILENT in message) == (number == signal.SIGSTOP), (rank, message)
        last = max(last, seen_at - sent_at)
    assert job.returncode != 0
    return err, pids.values(), last


@pytest.mark.parametrize(("victim", "forks"), [(0, "alone"), (2, "forks")])
def test_killed_rank_under_tfring_run(tmp_path, victim, forks):
    path = write_script(tmp_path, SCRIPT, header=REPORT)
    job = start("-np", 3, sys.executable, path, tmp_path, victim, 0, forks)
    err, pids, _ = signal_victim(tmp_path, job, victim, 3)
    assert job.returncode == 137
    killed = f"Rank {victim} was killed by SIGKILL from outside the job"
    assert killed in err
    assert not any(alive(pid) for pid in pids)


TRAINING = """
    import json, os, sys, time
    import numpy as np
    import tensorflow as tf
    import keras
    import tfring.keras as hvd

    hvd.init()
    rank = hvd.rank()

    class Report(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 5:
                report(f"pid.{rank}", os.getpid())

    model = keras.Sequential([keras.layers.Dense(64), keras.layers.Dense(1)])
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.001)), loss="mse")
    rows = np.ones((1 << 20, 8), np.float32)
    try:
        callbacks = hvd.fit_callbacks(Report())
        model.fit(rows, rows[:, :1], batch_size=8, verbose=0, callbacks=callbacks)
    except tf.errors.OpError as error:
        now = time.monotonic()
        report(f"end.{rank}", json.dumps([now, error.error_code, error.message]))
        raise
"""


@pytest.mark.slow
def test_killed_rank_during_fit(tmp_path):
    if not any(native.library_dir().glob("**/build.json")):
        pytest.skip("the op library is not built")
    path = write_script(tmp_path, TRAINING, header=REPORT)
    job = start("-np", 2, sys.executable, path, tmp_path, TF_CPP_MIN_LOG_LEVEL="3")
    err, _, _ = signal_victim(tmp_path, job, 0, 2)
    killed = "Rank 0 was killed by SIGKILL from outside the job"
    assert killed in err


def test_killed_rank_under_mpirun(tmp_path):
    launcher = [*open_mpi_command(major="5"), "--continuous"]  # which lets the survivors live
    path = write_script(tmp_path, SCRIPT, header=REPORT)
    words = [sys.executable, path, tmp_path, 1, 0, "alone"]
    job = start_command([*launcher, "-np", "3", *map(str, words)], **AS_ROOT)
    signal_victim(tmp_path, job, 1, 3)


@pytest.mark.soak
@pytest.mark.parametrize("victim", [0, 1])
def test_others_hear_of_a_killed_rank_within_a_second(tmp_path, victim):
    path = write_script(tmp_path, SCRIPT, header=REPORT)
    job = start("-np", 3, sys.executable, path, tmp_path, victim, RESIDENT_GIB, "alone")
    _, _, last = signal_victim(tmp_path, job, victim, 3)
    assert last < RAISE_SECONDS


def test_stopped_rank_shows_in_missing_heartbeats(tmp_path):
    path = write_script(tmp_path, SCRIPT, header=REPORT)
    job = start(
        "-np",
        3,
        sys.executable,
        path,
        tmp_path,
        1,
        0,
        "alone",
        TFRING_HEARTBEAT_SECONDS="0.5",
        TFRING_HEARTBEAT_TIMEOUT_SECONDS="2",
    )
    err, pids, _ = signal_victim(tmp_path, job, 1, 3, signal.SIGSTOP)
    assert SILENT in err
    assert not any(alive(pid) for pid in pids)


def test_init_in_a_forked_child_is_an_error(tmp_path):
    path = write_script(
        tmp_path,
        """
    import os, sys
    from tfring import world
    world.init()
    pid = os.fork()
    if pid == 0:
        try:
            world.init()
        except RuntimeError as error:
            assert "forked" in str(error), error
            sys.exit(7)  # its exit handlers must not send the parent's goodbye
        sys.exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    from tfring.runtime._native import core
    core.barrier(name="still here")
    """,
    )
    done = run("-np", 2, sys.executable, path)
    assert done.returncode == 0, done.stderr
