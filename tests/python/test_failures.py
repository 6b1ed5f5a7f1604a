"""What happens to the other ranks when one is lost. Whole jobs, killed from outside.

TFRING_TEST_RESIDENT_GIB=4 makes the lost rank as large as the product promises to handle.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
from launcher_tools import LIMIT_SECONDS, alive, environment, pids_in, start
from launcher_tools import write_script as write

native = pytest.importorskip("tfring._native")

RESIDENT_GIB = float(os.environ.get("TFRING_TEST_RESIDENT_GIB", "1"))
# What the product promises: from the kill to the error in every survivor's hands.
RAISE_SECONDS = 1.0
UNAVAILABLE = 14

SCRIPT = """
    import json, os, subprocess, sys, time
    import numpy as np
    from tfring import topology, world
    from tfring._native import core

    folder, victim, gib, forks = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
    world.init()
    rank = topology.rank()

    def report(name, value):
        with open(f"{folder}/tmp.{rank}", "w") as file:
            file.write(f"{value}\\n")
        os.rename(f"{folder}/tmp.{rank}", f"{folder}/{name}.{rank}")

    if rank == victim:
        ballast = np.ones(int(gib * (1 << 27)))
    if forks == "forks":
        subprocess.Popen(["sleep", "20"], start_new_session=True)
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
                report("pid", os.getpid())
    except core.CoreError as error:
        now = time.monotonic()
        report("end", json.dumps([now, error.code, error.message]))
        raise
"""


def check_survivors(folder, job, victim, size, killed_at, within=RAISE_SECONDS):
    out, err = job.communicate(timeout=LIMIT_SECONDS)
    for rank in (r for r in range(size) if r != victim):
        end = folder / f"end.{rank}"
        assert end.exists(), f"rank {rank} did not get to its error:\n{err}"
        seen_at, code, message = json.loads(end.read_text())
        assert code == UNAVAILABLE, (rank, code, message)
        assert f"rank {victim} (host " in message, (rank, message)
        late = seen_at - killed_at
        assert late < within, f"rank {rank} raised {late:.3f} s after the kill: {message}"
    assert job.returncode != 0
    return out, err


@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("forks", ["alone", "forks"])
def test_killed_rank_under_tfring_run(tmp_path, victim, forks):
    path = write(tmp_path, SCRIPT)
    job = start("-np", 3, sys.executable, path, tmp_path, victim, RESIDENT_GIB, forks)
    pids = pids_in(tmp_path, 3)
    killed_at = time.monotonic()
    os.kill(pids[str(victim)], signal.SIGKILL)
    _, err = check_survivors(tmp_path, job, victim, 3, killed_at)
    assert job.returncode == 137
    assert f"rank {victim} on host localhost failed first, with signal 9 (SIGKILL)" in err
    assert not any(alive(pid) for pid in pids.values())


TRAINING = """
    import json, os, sys, time
    import numpy as np
    import tensorflow as tf
    import keras
    import tfring.keras as hvd

    folder = sys.argv[1]
    hvd.init()
    rank = hvd.rank()

    def report(name, value):
        with open(f"{folder}/tmp.{rank}", "w") as file:
            file.write(f"{value}\\n")
        os.rename(f"{folder}/tmp.{rank}", f"{folder}/{name}.{rank}")

    class Report(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 5:
                report("pid", os.getpid())

    model = keras.Sequential([keras.layers.Dense(64), keras.layers.Dense(1)])
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.001)), loss="mse")
    rows = np.ones((1 << 20, 8), np.float32)
    try:
        model.fit(rows, rows[:, :1], batch_size=8, verbose=0, callbacks=[Report()])
    except tf.errors.OpError as error:
        now = time.monotonic()
        report("end", json.dumps([now, error.error_code, error.message]))
        raise
"""


@pytest.mark.parametrize("victim", [0, 1])
def test_killed_rank_during_fit(tmp_path, victim):
    if not (native.library_dir() / "build.json").exists():
        pytest.skip("the op library is not built")
    path = write(tmp_path, TRAINING)
    job = start("-np", 2, sys.executable, path, tmp_path, TF_CPP_MIN_LOG_LEVEL="3")
    pids = pids_in(tmp_path, 2)
    killed_at = time.monotonic()
    os.kill(pids[str(victim)], signal.SIGKILL)
    _, err = check_survivors(tmp_path, job, victim, 2, killed_at)
    assert f"rank {victim} on host localhost failed first, with signal 9 (SIGKILL)" in err


def mpirun_that_spares_survivors():
    """The command of an Open MPI that can be told not to kill the survivors, or None."""
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        return None
    shown = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False)
    if "Open MPI) 5" not in shown.stdout:
        return None
    return [mpirun, "--continuous", "--map-by", ":OVERSUBSCRIBE"]


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("forks", ["alone", "forks"])
def test_killed_rank_under_mpirun(tmp_path, victim, forks):
    mpirun = mpirun_that_spares_survivors()
    if mpirun is None:
        pytest.skip("needs Open MPI 5")
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    path = write(tmp_path, SCRIPT)
    words = [sys.executable, path, tmp_path, victim, RESIDENT_GIB, forks]
    job = subprocess.Popen(
        [*mpirun, "-np", "3", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**root),
    )
    pids = pids_in(tmp_path, 3)
    killed_at = time.monotonic()
    os.kill(pids[str(victim)], signal.SIGKILL)
    check_survivors(tmp_path, job, victim, 3, killed_at)


@pytest.mark.parametrize("victim", [0, 1])
def test_stopped_rank_shows_in_missing_heartbeats(tmp_path, victim):
    path = write(tmp_path, SCRIPT)
    job = start(
        *("-np", 3, sys.executable, path, tmp_path, victim, 0, "alone"),
        TFRING_HEARTBEAT_SECONDS="0.5",
        TFRING_HEARTBEAT_TIMEOUT_SECONDS="2",
    )
    pids = pids_in(tmp_path, 3)
    stopped_at = time.monotonic()
    os.kill(pids[str(victim)], signal.SIGSTOP)
    _, err = check_survivors(tmp_path, job, victim, 3, stopped_at, within=10.0)
    assert "heartbeat" in err
    assert not any(alive(pid) for pid in pids.values())


def test_rank_that_raises_is_the_one_that_is_shown(tmp_path):
    path = write(
        tmp_path,
        """
    import sys, time
    import numpy as np
    from tfring import topology, world
    from tfring._native import core
    world.init()
    for step in range(1 << 30):
        core.allreduce(np.ones(1000, np.float32), name="step", op=1)
        if step == 20 and topology.rank() == 1:
            raise ZeroDivisionError("only here")
    """,
    )
    job = start("-np", 3, sys.executable, path)
    _, err = job.communicate(timeout=LIMIT_SECONDS)
    assert job.returncode == 1
    closing = err[err.index("tfring run: rank") :]
    assert "rank 1 on host localhost failed first" in closing
    assert "ZeroDivisionError: only here" in closing
    # The others were told that rank 1 left, each in its own error.
    told = [line for line in err.splitlines() if re.search(r"Cancelled: .*\brank 1 ", line)]
    assert {line[:3] for line in told} >= {"[0]", "[2]"}, err


def test_everybody_ends_well_after_the_last_collective(tmp_path):
    """Leaving right after a collective cancels nobody's part in it, and init may follow."""
    path = write(
        tmp_path,
        """
    import numpy as np
    from tfring import topology, world
    from tfring._native import core
    for _ in range(20):
        world.init()
        total = core.allreduce(np.ones(10, np.float32), name="x", op=1)
        assert total[0] == topology.size()
        core.barrier(name="last")
        world.shutdown()
    world.init()
    core.barrier(name="end")
    """,
    )
    job = start("-np", 3, sys.executable, path)
    _, err = job.communicate(timeout=LIMIT_SECONDS)
    assert job.returncode == 0, err


def test_idle_ranks_sleep(tmp_path):
    """Ten seconds after init the runtime's threads have woken up at most 100 times in all."""
    path = write(
        tmp_path,
        """
    import time
    from tfring import world
    from tfring._native import core
    def wakeups():
        return sum(v for k, v in core.counters().items() if k.endswith("_wakeups"))
    world.init()
    assert any(k.endswith("_wakeups") for k in core.counters())
    before = wakeups()
    time.sleep(10)
    print("woke", wakeups() - before)
    core.barrier(name="end")
    """,
    )
    job = start("-np", 2, sys.executable, path)
    out, err = job.communicate(timeout=LIMIT_SECONDS)
    assert job.returncode == 0, err
    counts = [int(line.rpartition("woke ")[2]) for line in out.splitlines() if "woke" in line]
    assert len(counts) == 2 and max(counts) <= 100, counts


def test_forked_child_is_told_that_it_is_no_rank(tmp_path):
    path = write(
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
            sys.exit(7)  # its exit handlers must not say goodbye for the parent
        sys.exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    from tfring._native import core
    core.barrier(name="still here")
    """,
    )
    job = start("-np", 2, sys.executable, path)
    _, err = job.communicate(timeout=LIMIT_SECONDS)
    assert job.returncode == 0, err
