"""What a lock of the schedule (TFRING_LOCK_SCHEDULE) costs, counted. Whole jobs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from launcher_tools import REPORT, run, write_script

native = pytest.importorskip("tfring._native")

RANKS = 2
STEPS, WINDOWS = 50, 20
IDLE_SECONDS, IDLE_WAKEUPS = 3, 30  # the limit is 100 in 10 s

HEADER = f"""
import json, sys, time
import numpy as np
import tfring
from tfring._native import core

tfring.init()
rank = core.rank()


def train(steps):
    for step in range(steps):
        for name, count in (("a", 1000), ("b", 10)):
            result = core.allreduce(np.full(count, step + rank, np.float32), name=name, op=1)
            assert result[-1] == 2 * step + 1


def frames():
    counters = core.counters()
    return counters["frames_sent"] + counters["frames_received"]


def frames_of_windows():
    found = []
    for _ in range({WINDOWS}):
        before = frames()
        train({STEPS})
        found.append(frames() - before)
    return found

"""

FRAMES = """
train(10)
report(f"frames.{rank}", json.dumps(frames_of_windows()))
heartbeats = core.counters()["heartbeats_sent"]
limit = time.monotonic() + 60
while core.counters()["heartbeats_sent"] == heartbeats and time.monotonic() < limit:
    time.sleep(0.1)
assert core.counters()["heartbeats_sent"] > heartbeats
core.barrier(name="end")
"""

IDLE = f"""
def wakeups():
    return sum(v for k, v in core.counters().items() if k.endswith("_wakeups"))


found = frames_of_windows()
time.sleep(0.5)  # what looks back at the last step has looked
before = wakeups()
time.sleep({IDLE_SECONDS})
report(f"idle.{{rank}}", json.dumps([wakeups() - before, min(found)]))
core.barrier(name="end")
"""


def reports(folder: Path, name: str, script: str, locks: bool) -> list:
    """Runs the script and returns what each rank has reported under the name."""
    path = write_script(folder, script, header=REPORT + HEADER)
    settings = {"TFRING_LOCK_SCHEDULE": str(int(locks)), "TFRING_HEARTBEAT_SECONDS": "1"}
    done = run("-np", RANKS, "python", path, folder, **settings)
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"{name}.{rank}").read_text()) for rank in range(RANKS)]


def test_locked_steps_need_no_control_frames(tmp_path: Path) -> None:
    """A busy machine may end a lock between two windows, but it begins again."""
    by_rank = reports(tmp_path, "frames", FRAMES, locks=True)
    of_windows = [sum(window) for window in zip(*by_rank, strict=True)]
    assert of_windows.count(0) > WINDOWS // 2, by_rank


def test_without_a_lock_every_step_has_control_frames(tmp_path: Path) -> None:
    """So the test above can fail."""
    for windows in reports(tmp_path, "frames", FRAMES, locks=False):
        assert min(windows) >= 2 * STEPS, windows


@pytest.mark.parametrize("locks", [False, True])
def test_ranks_that_wait_for_the_program_sleep(tmp_path: Path, locks: bool) -> None:
    """Also where there is a lock, and a heartbeat each second."""
    for woke, frames in reports(tmp_path, "idle", IDLE, locks):
        assert woke <= IDLE_WAKEUPS, woke
        assert (frames == 0) == locks
