"""The probes for Kubernetes, on made headers and on ranks that run."""

from __future__ import annotations

import os
import re
import signal
import sys

import pytest
from launcher_tools import REPORT, finish, pids_in, start, wait_until, write_script

pytest.importorskip("tfring.runtime._native")

from tfring.observe.live.probe import count_missing, find_present, find_trouble, read_silent_seconds
from tfring.observe.recorder.layout import RankState
from tfring.observe.recorder.processes import own_boot, own_pid_space
from tfring.observe.recorder.reader import read_header

SECOND = 1_000_000_000
NOW = 1_000 * SECOND


def header(rank=0, size=2, pid=None, state=RankState.RUNNING, awake=1.0, wall=1):
    return {
        "rank": rank,
        "size": size,
        "pid": os.getpid() if pid is None else pid,
        "pid_started": 0,  # whichever process has this number
        "pid_space": own_pid_space(),
        "boot": own_boot(),
        "state": state,
        "awake": NOW - int(awake * SECOND),
        "started_wall": wall,
    }


def test_the_newest_record_of_a_process_counts():
    old, new = header(state=RankState.FAILED, wall=1), header(rank=1, wall=2)
    for both in ([old, new], [new, old]):
        [found] = find_present(both, NOW)
        assert found["rank"] == 1 and found["process"] == "running" and found["silent"] == 1.0
    gone = header(pid=2**22 + 1)  # above the largest number of a process
    assert find_present([gone, {**new, "boot": "another"}], NOW) == []


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (header(awake=59), ""),
        (header(awake=61), "rank 0 of 2 .* not been awake for 61 s"),
        (header(awake=61, size=1), ""),
        (header(awake=61, state=RankState.LEFT), ""),
        (header(awake=61, state=RankState.FAILED), ""),
    ],
)
def test_a_rank_that_sleeps_for_long_is_in_trouble(made, words):
    found = find_trouble(find_present([made], NOW), 60.0)
    assert re.search(words, found) if words else found == ""
    assert find_trouble(find_present([made], NOW), 0.0) == ""


@pytest.mark.parametrize(
    ("given", "seconds"), [(None, 60), ("", 60), ("0", 0), ("20", 240), ("often", 60)]
)
def test_a_rank_may_sleep_for_twelve_heartbeats(monkeypatch, given, seconds):
    monkeypatch.delenv("TFRING_HEARTBEAT_SECONDS", raising=False)
    if given is not None:
        monkeypatch.setenv("TFRING_HEARTBEAT_SECONDS", given)
    assert read_silent_seconds() == seconds


def test_ranks_have_to_be_through_init():
    one = find_present([header()], NOW)
    assert count_missing(one, 1) == ""
    assert "1 of 2 ranks" in count_missing(one, 2)
    assert count_missing(find_present([header(state=RankState.LEFT)], NOW), 1) != ""


def probe(folder, *words):
    command = [sys.executable, "-m", "tfring.observe.live.probe", *words]
    return finish(command, TFRING_RECORD_DIR=str(folder / "records"))


def test_ranks_that_run_and_that_were_stopped(tmp_path):
    path = write_script(
        tmp_path,
        """
        import time
        from tfring.runtime import topology
        from tfring import world
        report(f"pid.{os.environ['TFRING_X_RANK']}", os.getpid())
        while not os.path.exists(f"{sys.argv[1]}/go"):
            time.sleep(0.05)
        world.init()
        report(f"ready.{topology.rank()}", "")
        time.sleep(600)
        """,
        header=REPORT,
    )
    records = str(tmp_path / "records")
    job = start("-np", 2, sys.executable, path, tmp_path, TFRING_RECORD_DIR=records)
    try:
        pids = pids_in(tmp_path, 2)
        assert probe(tmp_path, "live").returncode == 0, "before init"
        before = probe(tmp_path, "ready", "--ranks", "2")
        assert before.returncode == 1 and "0 of 2 ranks" in before.stdout
        (tmp_path / "go").touch()
        assert wait_until(lambda: len(list(tmp_path.glob("ready.*"))) == 2, 60)
        for words in (["live"], ["ready", "--ranks", "2"]):
            done = probe(tmp_path, *words)
            assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
        assert probe(tmp_path, "ready", "--ranks", "3").returncode == 1
        os.kill(pids["1"], signal.SIGSTOP)
        stopped = probe(tmp_path, "live")
        assert stopped.returncode == 1 and f"rank 1 of 2 (process {pids['1']})" in stopped.stdout
        os.kill(pids["1"], signal.SIGCONT)
        files = list((tmp_path / "records").glob("*/*.record"))
        assert sorted(read_header(file)["rank"] for file in files) == [0, 1]
    finally:
        job.kill()
        job.communicate()
    assert probe(tmp_path, "live").returncode == 0, "what is left of ranks that are gone"
