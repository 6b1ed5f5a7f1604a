"""Signals that are passed on, and the report of the end of a job."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import sys
import time
from pathlib import Path

import pytest
from launcher_tools import (
    LIMIT_SECONDS,
    alive,
    fake_ssh,
    finish,
    pids_in,
    run,
    run_command,
    script,
    start,
    wait_until,
)
from limited_memory import enter, limited_groups

from tfring.launch import signals
from tfring.launch.agents.out_of_memory import (
    OutOfMemoryWatch,
    counter_files,
    killed_in_log,
)
from tfring.launch.escalation import Escalation


def read_events(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_warnings_of_schedulers_are_passed_on_and_end_nobody(tmp_path):
    path = script(
        tmp_path,
        """
    got = []
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU):
        signal.signal(number, lambda number, _: got.append(number))
    report(f"pid.{rank}", os.getpid())
    while len(set(got)) < 3:
        time.sleep(0.05)
    print("got", *sorted(set(got)))
    """,
    )
    events = tmp_path / "events"
    job = start("-np", 2, "--events", events, sys.executable, path, tmp_path)
    pids_in(tmp_path, 2)
    numbers = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
    for number in numbers:
        job.send_signal(number)
    out, errors = job.communicate(timeout=LIMIT_SECONDS)
    assert job.returncode == 0, errors
    wanted = " ".join(str(int(number)) for number in sorted(numbers))
    assert sorted(out.splitlines()) == [f"{r}| got {wanted}" for r in range(2)]
    said = {one.get("signal") for one in read_events(events) if one["event"] == "signal"}
    assert said == {number.name for number in numbers}


def stopped(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_the_time_to_end_stands_still_with_the_launcher(tmp_path):
    path = script(
        tmp_path,
        """
    def save(*_):
        report("pid.asked", os.getpid())
        wait_for("go")
        report("saved", "yes")
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
    report("pid.0", os.getpid())
    time.sleep(300)
    """,
    )
    seconds = 6
    options = ("-np", 1, "--stop-timeout", seconds)
    job = start(*options, sys.executable, path, tmp_path)
    pids = [*pids_in(tmp_path, 1).values(), job.pid]
    job.send_signal(signal.SIGTERM)
    pids_in(tmp_path, 2)
    job.send_signal(signal.SIGTSTP)
    assert wait_until(lambda: all(stopped(pid) for pid in pids), 60)
    time.sleep(seconds + 1)
    (tmp_path / "go").touch()
    job.send_signal(signal.SIGCONT)
    _, errors = job.communicate(timeout=LIMIT_SECONDS)
    assert job.returncode == 75 and (tmp_path / "saved").exists(), errors


def test_signal_while_starting(tmp_path):
    """The first ssh never gets through: the job ends with the code of the signal."""
    number = signal.SIGHUP
    ssh = fake_ssh(tmp_path, 'echo there > "${0%/bin/ssh}/pid.0"; exec sleep 60')
    report = tmp_path / "report.json"
    job = start("-H", "127.0.0.2:2", "--exit-report", report, "true", PATH=ssh)
    assert wait_until(lambda: (tmp_path / "pid.0").exists(), 60)
    job.send_signal(number)
    _, errors = job.communicate(timeout=LIMIT_SECONDS)
    assert job.returncode == 128 + number
    assert "before all ranks were started" in errors
    said = json.loads(report.read_text())
    assert (said["state"], said["signal"], said["exit_code"]) == (
        "ended",
        number.name,
        128 + number,
    )


def test_stop_timeout(tmp_path):
    path = script(
        tmp_path,
        """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    report(f"pid.{rank}", os.getpid())
    time.sleep(300)
    """,
    )
    report = tmp_path / "report.json"
    options = ("-np", 1, "--stop-timeout", 1, "--exit-report", report)
    job = start(*options, sys.executable, path, tmp_path)
    pids = pids_in(tmp_path, 1)
    job.send_signal(signal.SIGTERM)
    _, errors = job.communicate(timeout=LIMIT_SECONDS)
    assert job.returncode == 137 and "have 1 s to end" in errors
    assert "ranks that did not end in time and were killed: 0\n" in errors
    assert not any(alive(pid) for pid in pids.values())
    said = json.loads(report.read_text())
    assert said["signal"] == "SIGTERM" and said["ranks"][0]["ended_by_launcher"]
    assert said["ranks"][0]["oom"] == ""


def test_a_job_that_a_signal_has_ended_may_have_a_code_of_its_own(tmp_path):
    path = script(
        tmp_path,
        """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    report(f"pid.{rank}", os.getpid())
    time.sleep(300)
    """,
    )
    job = start("-np", 1, sys.executable, path, tmp_path)
    pids_in(tmp_path, 1)
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=LIMIT_SECONDS)
    assert job.returncode == 3


def test_a_rank_that_failed_is_not_hidden_by_one_that_left_in_good_order(tmp_path):
    path = script(
        tmp_path,
        """
    def leave(*_):
        time.sleep(rank)
        sys.exit(75 if rank == 0 else "the disk is full")
    signal.signal(signal.SIGTERM, leave)
    report(f"pid.{rank}", os.getpid())
    time.sleep(300)
    """,
    )
    job = start("-np", 2, sys.executable, path, tmp_path)
    pids_in(tmp_path, 2)
    job.send_signal(signal.SIGTERM)
    _, errors = job.communicate(timeout=LIMIT_SECONDS)
    assert job.returncode == 1, errors
    assert "all ranks were asked to end, and have" not in errors


@contextlib.contextmanager
def not_ignored(number):
    """Under nohup SIGHUP is, and SignalWatch leaves it so."""
    before = signal.signal(number, signal.SIG_DFL)
    yield
    signal.signal(number, before)


def test_signals_of_one_end_are_one(monkeypatch):
    """A scheduler and its batch script may both send SIGTERM; a second Ctrl-C is deliberate."""
    now = 100.0
    monkeypatch.setattr(signals.time, "monotonic", lambda: now)
    with not_ignored(signal.SIGHUP), signals.SignalWatch() as watch:

        def read(*numbers):
            for number in numbers:
                signal.raise_signal(number)
            return watch.read()

        assert read(signal.SIGTERM, signal.SIGTERM, signal.SIGUSR1) == [15, 10]
        now += 4.9
        assert read(signal.SIGTERM, signal.SIGHUP) == []
        assert read(signal.SIGINT, signal.SIGINT) == [2, 2]
        now += 0.2
        assert read(signal.SIGHUP, signal.SIGTERM) == [1]


def test_a_signal_leaves_no_more_time_to_what_has_to_end_already():
    escalation = Escalation()
    escalation.terminate(100.0, 3.0)
    escalation.kill(130.0)
    assert escalation.due() == [103.0]
    escalation.kill(101.0)
    assert escalation.due() == [101.0]


def test_exit_report_and_events_of_a_failure(tmp_path):
    path = script(
        tmp_path,
        """
    if rank == 1:
        raise ValueError("the cause")
    time.sleep(300)
    """,
    )
    report, events = tmp_path / "report.json", tmp_path / "events"
    done = run(
        "-np", 2, "--exit-report", report, "--events", events, sys.executable, path, tmp_path
    )
    said = json.loads(report.read_text())
    assert done.returncode == said["exit_code"] == 1
    assert said["state"] == "ended" and said["signal"] is None and said["format"] == 1
    assert said["began"] < said["ended"] and said["command"][-1] == str(tmp_path)
    here = socket.gethostname()
    assert said["first_failure"] == {"rank": 1, "host": here, "reason": "exit code 1"}
    assert {rank["host"] for rank in said["ranks"]} == {here}
    assert "Rank 1 failed" in said["explanation"]
    failed, ended = said["ranks"][1], said["ranks"][0]
    assert failed["last_lines"][-1] == "ValueError: the cause" and failed["exit_code"] == 1
    assert ended["signal"] == 15 and ended["exit_code"] == 143 and ended["ended_by_launcher"]
    lines = read_events(events)
    assert lines[0]["event"] == "job_started" and lines[0]["job_id"] == said["job_id"]
    assert lines[-1]["event"] == "job_ended" and lines[-1]["exit_code"] == 1
    assert {one["host"] for one in lines if "host" in one} == {here}
    pids = {one["rank"]: one["pid"] for one in lines if one["event"] == "rank_started"}
    assert pids == {0: ended["pid"], 1: failed["pid"]}
    codes = {one["rank"]: one["exit_code"] for one in lines if one["event"] == "rank_failed"}
    assert codes == {0: 143, 1: 1}


@pytest.mark.parametrize(
    ("option", "name", "link"),
    [
        ("--events", "events", "events"),
        ("--output-filename", "out", "out/rank.0"),
    ],
)
def test_files_follow_no_link_of_others(option, name, link, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "stdout").write_text("mine")
    target = precious if link.endswith("rank.0") else precious / "stdout"
    (tmp_path / link).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / link).symlink_to(target)
    done = run("-np", 1, option, tmp_path / name, "true")
    assert done.returncode == 2, done.stderr
    assert (precious / "stdout").read_text() == "mine"
    assert f"{option}: a file cannot be made" in done.stderr


def test_a_pipe_or_a_device_in_the_place_of_a_file_stays_and_holds_nobody_up(tmp_path):
    option = "--exit-report"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    done = run("-np", 1, option, pipe, "true")
    assert done.returncode == 2
    assert f"{option}: a file cannot be made: {pipe} is no regular file" in done.stderr
    assert pipe.is_fifo()  # root could remove /dev/null


def test_nobody_else_can_read_what_ranks_write(tmp_path):
    files = ("--exit-report", tmp_path / "r", "--events", tmp_path / "e")
    done = run("-np", 1, *files, "--output-filename", tmp_path / "o", "true")
    assert done.returncode == 0, done.stderr
    for path in (tmp_path / "r", tmp_path / "e", tmp_path / "o/rank.0/stdout"):
        assert path.stat().st_mode & 0o077 == 0
    said = json.loads((tmp_path / "r").read_text())
    assert (said["exit_code"], said["first_failure"], said["explanation"]) == (0, None, "")


LOG = [
    "6,1,5000000,-;something else",
    "3,2,100000000,-;Out of memory: Killed process 4711 (python3) total-vm:9kB, "
    "anon-rss:2048kB, file-rss:1024kB, shmem-rss:0kB, UID:0",
    "6,3,200000000,-;oom-kill:constraint=CONSTRAINT_MEMCG,task=python3,pid=12,uid=0\n SUBSYSTEM=x",
]


def test_the_kernels_log():
    assert killed_in_log(LOG, 4711, 90.0) == 3 << 20 and killed_in_log(LOG, 12, 190.0) == 0
    assert killed_in_log(LOG, 4711, 150.0) is None  # an earlier process with this id
    assert killed_in_log(LOG, 471, 0.0) is killed_in_log(["nonsense"], 1, 0.0) is None


def test_counters_of_control_groups(tmp_path):
    old, new = "4:memory:/a/b\n1:cpu:/\n", "0::/a/b\n"
    names = [str(file.relative_to(tmp_path)) for file in counter_files(old + new, tmp_path)]
    assert names[0] == "memory/a/b/memory.oom_control" and names[2] == "a/b/memory.events"
    own = Path("/proc/self/cgroup").read_text()
    file = counter_files(own, tmp_path)[0]
    file.parent.mkdir(parents=True)
    file.write_text("low 0\noom 3\noom_kill 3\n")
    watch = OutOfMemoryWatch(os.getpid(), tmp_path)
    file.write_text("low 0\noom 9\noom_kill 3\n")
    assert watch.verdict() == ""
    file.write_text("low 0\noom 4\noom_kill 4\n")
    assert re.search(r"^probably out of memory: .* \(this machine has \d.*iB\)$", watch.verdict())
    file.with_name("memory.limit_in_bytes").write_text(f"{5 << 20}\n")
    assert watch.verdict().endswith("(the limit of this container is 5.00 MiB)")


def test_out_of_memory_is_told(tmp_path):
    path = script(
        tmp_path,
        """
    if rank == 1:
        data = [b"x" * (1 << 20) for _ in range(2000)]
    time.sleep(300)
    """,
    )
    report = tmp_path / "report.json"
    command = run_command("-np", 2, "--exit-report", report, sys.executable, path, tmp_path)
    with limited_groups(1, 400) as prefix:
        done = finish([*enter(f"{prefix}.0"), *command])
    assert done.returncode == 137, done.stderr
    told = r"^tfring: Rank 1 was killed: .*out of memory.*the limit of this container is 400 MiB"
    assert re.search(told, done.stderr, re.MULTILINE), done.stderr
    said = json.loads(report.read_text())
    assert "out of memory" in said["ranks"][1]["oom"] and said["ranks"][1]["signal"] == 9
    assert said["ranks"][0]["oom"] == ""
