"""Jobs whose ranks all start again after one has failed: `tfring run --max-restarts`."""

from __future__ import annotations

import json
import signal
import sys

from launcher_tools import (
    LIMIT_SECONDS,
    RUN_HERE,
    fake_ssh,
    pids_in,
    run,
    script,
    start,
    wait_until,
)


def test_all_ranks_start_again_and_meet_anew(tmp_path):
    path = script(
        tmp_path,
        """
    import numpy as np
    from tfring import world
    from tfring.runtime._native import core

    world.init()
    report(f"{life}.{rank}", core.allgather(np.array([life]), name="lives").tolist())
    if rank == 1 and life < 2:
        raise ValueError(f"life {life} is over")
    core.barrier(name="the ranks wait for each other")
    """,
    )
    report, events = tmp_path / "report.json", tmp_path / "events"
    files = ("--exit-report", report, "--events", events)
    done = run("-np", 2, "--max-restarts", 3, *files, sys.executable, path, tmp_path)
    assert done.returncode == 0, done.stderr
    for life in range(3):
        for rank in range(2):
            assert (tmp_path / f"{life}.{rank}").read_text() == f"[{life}, {life}]\n"
    notes = [line for line in done.stderr.splitlines() if "start again" in line]
    assert [line.rpartition(": ")[2] for line in notes] == [
        f"life {life} is over; all ranks start again (restart {life + 1} of 3)" for life in range(2)
    ]
    assert all("rank 1 on host" in n and "exit code 1: ValueError" in n for n in notes)
    assert json.loads(report.read_text())["restarts"] == 2
    told = [json.loads(line) for line in events.read_text().splitlines()]
    assert [one["restart"] for one in told if one["event"] == "restart"] == [1, 2]


def test_a_line_in_the_files_of_output_begins_another_life(tmp_path):
    path = script(tmp_path, 'print(f"life {life}", end="", flush=True)\nsys.exit(1 - life)')
    files = ("--output-filename", tmp_path / "out")
    done = run("-np", 1, "--max-restarts", 1, *files, sys.executable, path, tmp_path)
    assert done.returncode == 0, done.stderr
    first, mark, second = (tmp_path / "out/rank.0/stdout").read_text().splitlines()
    assert (first, second) == ("life 0", "life 1")
    assert mark.startswith("tfring run: restart 1 of all ranks: rank 0 on host")
    assert mark.endswith("ended with exit code 1")
    assert (tmp_path / "out/rank.0/stderr").read_text() == f"{mark}\n"


def test_when_the_restarts_are_used_up_the_job_ends_with_the_code_of_its_last_failure(tmp_path):
    path = script(tmp_path, "report(f'life.{life}.{rank}', life)\nsys.exit(10 + life)")
    done = run("-np", 2, "--max-restarts", 1, sys.executable, path, tmp_path)
    assert done.returncode == 11, done.stderr
    assert len(list(tmp_path.glob("life.*"))) >= 3 and "restart 1 of 1" in done.stderr
    assert not list(tmp_path.glob("life.2.*"))


def test_a_signal_ends_the_job_and_is_no_restart(tmp_path):
    path = script(
        tmp_path,
        """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    report(f"pid.{rank}", os.getpid())
    time.sleep(300)
    """,
    )
    job = start("-np", 2, "--max-restarts", 3, sys.executable, path, tmp_path)
    pids_in(tmp_path, 2)
    job.send_signal(signal.SIGTERM)
    _, errors = job.communicate(timeout=LIMIT_SECONDS)
    assert "start again" not in errors and "passed on to all ranks" in errors


def stopped_before_a_restart(job, report):
    """Stops a job between two runs of its ranks, and checks its messages."""
    job.send_signal(signal.SIGTERM)
    _, errors = job.communicate(timeout=LIMIT_SECONDS)
    assert job.returncode == 75, errors
    assert "stopped by SIGTERM before all ranks had started again (restart 1 of 3): " in errors
    said = json.loads(report.read_text())
    assert said["exit_code"] == 75 and said["signal"] == "SIGTERM"
    assert "before all ranks had started again" in said["explanation"]


def test_a_signal_while_the_ranks_of_one_life_still_end_stops_the_job(tmp_path):
    path = script(
        tmp_path,
        """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    report(f"pid.{rank}", os.getpid())
    while rank == 0 or not os.path.exists(f"{sys.argv[1]}/pid.0"):
        time.sleep(0.05)
    sys.exit(3)
    """,
    )
    report, events = tmp_path / "report.json", tmp_path / "events"
    options = ("-np", 2, "--max-restarts", 3, "--exit-report", report, "--events", events)
    job = start(*options, sys.executable, path, tmp_path)
    assert wait_until(lambda: events.exists() and "rank_failed" in events.read_text(), 60)
    stopped_before_a_restart(job, report)


def test_a_signal_while_ranks_start_again_stops_the_job(tmp_path):
    """The agent of the first run is killed, and no other agent can be reached."""
    path = script(tmp_path, "os.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(300)")
    ssh = fake_ssh(
        tmp_path,
        'there="${0%/bin/ssh}/there"\n[ -e $there ] && touch $there.again && exec sleep 60\n'
        f"touch $there\n{RUN_HERE}",
    )
    report = tmp_path / "report.json"
    options = ("-H", "127.0.0.2:2", "--max-restarts", 3, "--exit-report", report)
    job = start(*options, sys.executable, path, tmp_path, PATH=ssh)
    assert wait_until(lambda: (tmp_path / "there.again").exists(), 60)
    stopped_before_a_restart(job, report)


def test_a_rank_that_ended_in_good_order_is_no_restart(tmp_path):
    """A scheduler told the ranks themselves to end."""
    path = script(tmp_path, "report(f'life.{life}.{rank}', life)\nsys.exit(75)")
    done = run("-np", 2, "--max-restarts", 3, sys.executable, path, tmp_path)
    assert done.returncode == 75 and "start again" not in done.stderr


def test_restarts_that_make_no_sense(tmp_path):
    elastic = run("-np", 2, "--min-np", 1, "--max-restarts", 2, "true")
    assert elastic.returncode == 2 and "Give --reset-limit instead" in elastic.stderr
    negative = run("-np", 2, "--max-restarts", -1, "true")
    assert negative.returncode == 2
    assert "--max_restarts: -1 is not a whole number" in negative.stderr
