"""Timelines of whole jobs, as users make them."""

from __future__ import annotations

import json
import os
import signal
import sys

import pytest
from launcher_tools import LIMIT_SECONDS, REPORT, finish, run, start, wait_until, write_script

pytest.importorskip("tfring.runtime._native")

# Ranks that call something until the test says so, without TensorFlow.
LOOP = """
import time
import numpy as np
from tfring.world import init, shutdown
from tfring.observe.timeline.session import start_timeline, stop_timeline
from tfring.runtime._native import core

init()
folder, rank = sys.argv[1], core.rank()
"""


def slices(path):
    return [e for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "X"]


def test_a_part_of_a_job(tmp_path):
    script = write_script(
        tmp_path,
        """
    for name in "before", "within", "after":
        if name == "within":
            start_timeline(f"{folder}/part.json")
            try:
                start_timeline(f"{folder}/other.json")
            except ValueError as error:
                assert "part.json" in str(error), error
            else:
                raise AssertionError("two timelines at once")
        core.allreduce(np.ones(3), name=name, op=1)
        if name == "within":
            stop_timeline()
            assert rank != 0 or os.path.exists(f"{folder}/part.json")
            stop_timeline()  # none is on
    """,
        header=REPORT + LOOP,
    )
    # "DYNAMIC" is Horovod's way to say that the program starts the timeline.
    done = run("-np", 2, sys.executable, script, tmp_path, HOROVOD_TIMELINE="DYNAMIC")
    assert done.returncode == 0, done.stderr
    found = {
        e["args"]["tensor"] for e in slices(tmp_path / "part.json") if "tensor" in e.get("args", {})
    }
    assert found == {"within"}
    assert not list(tmp_path.glob("*.spool*"))


def test_ranks_that_were_killed(tmp_path):
    script = write_script(
        tmp_path,
        """
    for number in range(1000000):
        core.allreduce(np.ones(3), name="x", op=1)
        time.sleep(0.001)
        if number == 500:
            report(f"pid{rank}", os.getpid())
    """,
        header=REPORT + LOOP,
    )
    path = tmp_path / "job.json"
    job = start("-np", 2, sys.executable, script, tmp_path, HOROVOD_TIMELINE=str(path))
    pids = [tmp_path / f"pid{rank}" for rank in range(2)]
    try:
        assert wait_until(lambda: all(pid.exists() for pid in pids))
        for pid in pids:
            os.kill(int(pid.read_text()), signal.SIGKILL)
    finally:
        out, error = job.communicate(timeout=LIMIT_SECONDS)
    assert job.returncode != 0, out + error
    assert path.exists(), (error, list(tmp_path.iterdir()))
    found = slices(path)
    assert sum(e["name"] == "allreduce" for e in found) >= 200
    assert not list(tmp_path.glob("*.spool*"))


def test_a_job_that_runs_and_the_record_of_one_that_is_over(tmp_path):
    script = write_script(
        tmp_path,
        """
    for _ in range(5):
        core.allreduce(np.ones(3), name="x", op=1)
    if rank == 0:
        report("ready", 1)
    while not os.path.exists(f"{folder}/end"):
        time.sleep(0.01)
    """,
        header=REPORT + LOOP,
    )
    records = tmp_path / "records"
    job = start("-np", 2, sys.executable, script, tmp_path, TFRING_RECORD_DIR=str(records))
    try:
        assert wait_until((tmp_path / "ready").exists)
        command = [sys.executable, "-m", "tfring", "timeline", records, "-o", tmp_path / "a.json"]
        running = finish([*map(str, command)])
    finally:
        (tmp_path / "end").touch()
        out, error = job.communicate(timeout=LIMIT_SECONDS)
    assert job.returncode == 0, out + error
    assert running.returncode == 0, running.stderr
    assert running.stdout.startswith("2 of 2 ranks, 10 calls: ")
    assert "Open https://ui.perfetto.dev" in running.stdout
    over = finish([*map(str, command)])
    assert over.stdout == running.stdout
    assert sum(e["name"] == "allreduce" for e in slices(tmp_path / "a.json")) == 10


def test_without_a_record_there_is_a_warning_and_no_timeline(tmp_path):
    script = write_script(tmp_path, "", header=REPORT + LOOP)
    path = tmp_path / "a.json"
    path.write_text("of an earlier job")
    done = run("-np", 1, "--timeline", path, sys.executable, script, tmp_path, TFRING_RECORD="0")
    assert done.returncode == 0, done.stderr
    assert "rank 0 has no timeline" in done.stderr and "TFRING_RECORD" in done.stderr
    assert not path.exists()
