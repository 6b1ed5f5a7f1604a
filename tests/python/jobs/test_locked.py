"""Locked schedules (TFRING_LOCK_SCHEDULE) as a user sees them. Whole jobs."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from launcher_tools import LIMIT_SECONDS, REPORT, finish, run, start, wait_until, write_script

from tfring.observe.recorder.job import load_job
from tfring.observe.recorder.layout import EventType

native = pytest.importorskip("tfring.runtime._native")

RANKS = 2
STEPS, WINDOWS = 50, 20
IDLE_SECONDS, IDLE_WAKEUPS = 3, 30  # the limit is 100 in 10 s

HEADER = f"""
import json, sys, time
import numpy as np
import tfring
from tfring.runtime._native import core

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
    """Runs the script; returns each rank's reports of this name."""
    path = write_script(folder, script, header=REPORT + HEADER)
    settings = {"TFRING_LOCK_SCHEDULE": str(int(locks)), "TFRING_HEARTBEAT_SECONDS": "1"}
    done = run("-np", RANKS, sys.executable, path, folder, **settings)
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"{name}.{rank}").read_text()) for rank in range(RANKS)]


def test_locked_steps_need_no_control_frames(tmp_path: Path) -> None:
    """A busy machine may end a lock between two windows, but it begins again."""
    by_rank = reports(tmp_path, "frames", FRAMES, locks=True)
    of_windows = [sum(window) for window in zip(*by_rank, strict=True)]
    assert 0 in of_windows, by_rank


def test_ranks_that_wait_for_the_program_sleep(tmp_path: Path) -> None:
    """Also with a locked schedule, and with a heartbeat each second."""
    for woke, frames in reports(tmp_path, "idle", IDLE, locks=True):
        assert woke <= IDLE_WAKEUPS and frames == 0, (woke, frames)


COUNTED = """
train(20)
report(f"locks.{rank}", json.dumps(core.counters()["locks"]))
"""


@pytest.mark.parametrize(
    ("settings", "options", "locks"),
    [
        ({}, ("--min-np", RANKS), True),
        ({"TFRING_X_ARENA": "0"}, (), False),
        ({"TFRING_X_ARENA": "0", "TFRING_LOCK_SCHEDULE": "1"}, (), True),
    ],
)
def test_who_has_locks(
    tmp_path: Path, settings: dict[str, str], options: tuple[str | int, ...], locks: bool
) -> None:
    """Jobs whose ranks all share arenas, unless it is switched off; other jobs on request."""
    script = write_script(tmp_path, COUNTED, header=REPORT + HEADER)
    done = run("-np", RANKS, *options, sys.executable, script, tmp_path, **settings)
    assert done.returncode == 0, done.stderr
    for rank in range(RANKS):
        assert (json.loads((tmp_path / f"locks.{rank}").read_text()) > 0) == locks


LATE = """
for step in range(100):
    time.sleep(0.03 * rank)
    train(1)
report(f"rounds.{rank}", json.dumps(core.counters()["lock_rounds"]))
"""


def test_a_rank_that_is_a_little_late_in_each_step_is_named(tmp_path: Path) -> None:
    """The schedule stays locked, and rank 0 still knows for whom the others wait."""
    script = write_script(tmp_path, LATE, header=REPORT + HEADER)
    settings = {"TFRING_RECORD_DIR": str(tmp_path / "records")}
    done = run("-np", RANKS, sys.executable, script, tmp_path, **settings)
    assert done.returncode == 0, done.stderr
    rounds = json.loads((tmp_path / "rounds.0").read_text())
    record = load_job([tmp_path / "records"]).records[0]
    slow = record.ranks[1]
    # Not in the first steps, whose plans rank 0 made.
    in_locks = [c for c in record.calls if c.last_rank >= 0 and c.last_asked > c.planned > 0]
    assert rounds > 0
    assert len(in_locks) >= rounds // 2
    assert {call.last_rank for call in in_locks if call.name == "a"} == {1}
    assert slow["times"] >= rounds // 2
    assert slow["late"] >= rounds // 2 * 0.01e9


METRIC = """
for _ in range(4):
    train(20)
    core.allreduce(np.ones(1), name="metric", op=1)
train(20)
report(f"counts.{rank}", json.dumps(core.counters()))
seen = [0.0]
while seen[0] == 0:
    train(1)
    time.sleep(0.02)
    seen = core.allreduce(np.full(1, float(os.path.exists(f"{sys.argv[1]}/seen"))), name="s", op=1)
"""


def test_who_looks_sees_what_ends_locks(tmp_path: Path) -> None:
    """In the log of rank 0, in the records of both ranks, and in the tools that read them."""
    script = write_script(tmp_path, METRIC, header=REPORT + HEADER)
    settings = {"TFRING_LOG_LEVEL": "debug", "TFRING_RECORD_DIR": str(tmp_path / "records")}
    job = start("-np", RANKS, sys.executable, script, tmp_path, **settings)
    try:
        found = wait_until(lambda: len(list(tmp_path.glob("counts.*"))) == RANKS, 60)
        live = seen_live(tmp_path / "records") if found else None
    finally:
        (tmp_path / "seen").touch()
        _, log = job.communicate(timeout=LIMIT_SECONDS)
    assert job.returncode == 0 and live, log
    assert live["lock_rounds"] > 20
    for rank in range(RANKS):
        counts = json.loads((tmp_path / f"counts.{rank}").read_text())
        assert counts["locks"] > counts["unlocks_other_call"] >= 1, counts

    locked = "the schedule of 2 batches, 2 tensors is locked"
    ended = r"the lock of 2 tensors ended after \d+ rounds: rank [01] called 'metric', which is not"
    of_ranks = [re.findall(rf"rank {rank} .*debug: ({locked}|{ended})", log) for rank in range(2)]
    assert of_ranks[0][0] == locked and not of_ranks[1], log
    assert any(re.match(ended, line) for line in of_ranks[0]), log
    records = load_job([tmp_path / "records"])
    for record in records.records.values():
        texts = [e.text for e in record.events if e.type in (EventType.LOCK, EventType.UNLOCK)]
        assert texts[0].startswith(locked), texts
        assert any(re.match(ended, text) for text in texts), texts
        assert "shuts down" in texts[-1], texts
        assert record.header["locks"] == record.header["unlocks"] >= 2
        assert record.header["locks"] == records.records[0].header["locks"]
    timeline = tmp_path / "timeline.json"
    command = [sys.executable, "-m", "tfring", "timeline", tmp_path / "records", "-o", timeline]
    assert finish(command).returncode == 0
    names = [e["name"] for e in json.loads(timeline.read_text())["traceEvents"] if e["ph"] == "i"]
    assert names.count("lock") >= RANKS and names.count("unlock") >= RANKS


def seen_live(records: Path) -> dict:
    """The output of `tfring top` for a job whose schedule is locked most of the time."""
    command = [sys.executable, "-m", "tfring", "top", records, "--once", "--json", "-n", "0.1"]
    for _ in range(20):
        record = json.loads(finish(command).stdout)["ranks"][0]["row"]["record"]
        if record["locks"] > record["unlocks"]:
            return record
    raise AssertionError(record)


SLEEPER = """
for step in range(100):
    core.allreduce(np.ones(100, np.float32), name="a", op=1)
    if rank == 1 and step == 70:
        report("locks", core.counters()["locks"])
        time.sleep(3)
    core.allreduce(np.ones(1000, np.float32), name="gradient", op=1)
"""


def test_a_rank_that_is_late_within_a_step_is_named(tmp_path: Path) -> None:
    """By the stall inspector while the others wait, and afterwards by the record."""
    script = write_script(tmp_path, SLEEPER, header=REPORT + HEADER)
    settings = {
        "TFRING_LOG_LEVEL": "debug",
        "TFRING_STALL_CHECK_TIME_SECONDS": "1",
        "TFRING_RECORD_DIR": str(tmp_path / "records"),
    }
    done = run("-np", RANKS, sys.executable, script, tmp_path, **settings)
    assert done.returncode == 0, done.stderr
    assert int((tmp_path / "locks").read_text()) > 0
    stall = r"warning: Rank 1 sleeps in .*; rank 0 waits for it in allreduce of tensor 'gradient'"
    assert re.search(stall, done.stderr), done.stderr
    waited = r"rank 0 waited with 'gradient' for other ranks for 100 ms or longer"
    assert re.search(waited, done.stderr), done.stderr
    assert load_job([tmp_path / "records"]).records[0].ranks[1]["late"] > 2e9
