"""No process outlives the job: launcher, agents, ranks and their children, also on lost hosts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from launcher_tools import (
    LIMIT_SECONDS,
    alive,
    environment,
    fake_ssh,
    pids_in,
    run_command,
    script,
    start,
    wait_until,
)
from two_hosts import inside, two_hosts

FAMILY = """
    # A child without variables, one that left the session, and one that was orphaned.
    report(f"pid.{rank}.bare", subprocess.Popen(["env", "-i", "sleep", "300"]).pid)
    report(f"pid.{rank}.away", subprocess.Popen(["sleep", "300"], start_new_session=True).pid)
    made = subprocess.run(["sh", "-c", "setsid sleep 300 >/dev/null 2>&1 & echo $!"],
                          stdout=subprocess.PIPE, text=True)
    report(f"pid.{rank}.orphan", int(made.stdout))
    report(f"pid.{rank}", os.getpid())
    time.sleep(300)
    """
SLEEP = """
    report(f"pid.{rank}", os.getpid())
    time.sleep(300)
    """
# Until a file appears.
WAITS = """
    report(f"pid.{rank}", os.getpid())
    wait_for("go")
    """


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def gone(pids, seconds=60.0):
    return wait_until(lambda: not any(alive(pid) for pid in pids), seconds)


@pytest.mark.parametrize(
    ("where", "above"),
    [(("-np", 2), 1), (("-H", "127.0.0.2:2"), 1), (("-H", "127.0.0.2:2"), 2)],
    ids=["agent of this host", "agent of another host", "guardian"],
)
def test_killed_agents_leave_nobody(tmp_path, above, where):
    path = script(tmp_path, FAMILY)
    report = tmp_path / "report.json"
    job = start(
        *where,
        "--exit-report",
        report,
        sys.executable,
        path,
        tmp_path,
        PATH=fake_ssh(tmp_path),
    )
    pids = pids_in(tmp_path, 8)
    agent = pids["1"]
    for _ in range(above):
        agent = parent(agent)
    os.kill(agent, signal.SIGKILL)
    _, errors = job.communicate(timeout=LIMIT_SECONDS)
    assert gone(pids.values())
    assert job.returncode in (137, 255)
    said = json.loads(report.read_text())
    assert said["state"] == "ended" and said["first_failure"]["rank"] in (0, 1)
    why = "ssh to its host" if "-H" in where else "the agent of its host ended with signal 9"
    assert why in said["first_failure"]["reason"], errors


def test_agent_that_stands_still_ends_after_the_launcher(tmp_path):
    job = start("-np", 2, sys.executable, script(tmp_path, FAMILY), tmp_path)
    pids = pids_in(tmp_path, 8)
    os.kill(parent(pids["1"]), signal.SIGSTOP)
    job.kill()
    job.communicate(timeout=LIMIT_SECONDS)
    assert gone(pids.values())


def test_agent_that_stands_still_is_killed_when_the_job_is_to_end(tmp_path):
    path = script(tmp_path, FAMILY)
    job = start("-np", 2, "--stop-timeout", 1, sys.executable, path, tmp_path)
    pids = pids_in(tmp_path, 8)
    os.kill(parent(pids["1"]), signal.SIGSTOP)
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=LIMIT_SECONDS)
    assert job.returncode == 255
    assert gone(pids.values())


def test_launcher_that_stands_still_loses_other_hosts(tmp_path):
    job = start(
        "-H",
        "127.0.0.2:2",
        "--agent-timeout",
        3,
        sys.executable,
        script(tmp_path, SLEEP),
        tmp_path,
        PATH=fake_ssh(tmp_path),
    )
    pids = pids_in(tmp_path, 2)
    job.send_signal(signal.SIGSTOP)
    assert gone(pids.values())
    job.send_signal(signal.SIGCONT)
    job.communicate(timeout=LIMIT_SECONDS)
    assert job.returncode != 0


def test_a_launcher_that_was_suspended_from_its_terminal_loses_nobody(tmp_path):
    path = script(tmp_path, WAITS)
    job = start(
        "-H",
        "127.0.0.2:1",
        "--agent-timeout",
        5,
        sys.executable,
        path,
        tmp_path,
        PATH=fake_ssh(tmp_path),
    )
    pid = pids_in(tmp_path, 1)["0"]
    job.send_signal(signal.SIGTSTP)
    assert not wait_until(lambda: not alive(pid), 9.0)
    job.send_signal(signal.SIGCONT)
    (tmp_path / "go").touch()
    _, errors = job.communicate(timeout=LIMIT_SECONDS)
    assert job.returncode == 0, errors


def test_a_host_that_is_cut_off(tmp_path):
    """The network drops all packets silently: both sides notice, and no process is left."""
    path = script(tmp_path, FAMILY)
    report, events = tmp_path / "report.json", tmp_path / "events"
    with two_hosts(tmp_path) as (made, search):
        where = ",".join(f"{made.address(host)}:1" for host in range(2))
        options = ("-H", where, "--exit-report", report, "--events", events)
        options = (*options, "--agent-timeout", 5)
        job = subprocess.Popen(
            [*inside(made, 0), *run_command(*options, sys.executable, path, tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(PATH=search),
        )
        pids = pids_in(tmp_path, 8)
        made.cut(0, 1)
        _, errors = job.communicate(timeout=LIMIT_SECONDS)
        assert gone(pids.values())
    assert job.returncode == 255
    assert f"host {made.address(1)} gave no sign of life for 5 s" in errors
    said = json.loads(report.read_text())
    assert said["first_failure"]["rank"] == 1
    assert "no sign of life" in said["first_failure"]["reason"]
    assert said["ranks"][0]["ended_by_launcher"]
    names = [json.loads(line)["event"] for line in events.read_text().splitlines()]
    assert names[:1] == ["job_started"] and names[-1:] == ["job_ended"]
    assert "host_silent" in names
