"""One agent per host: its processes, their owners, and the time that ranks get to end."""

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
    script,
    start,
    wait_until,
)


def below(pid):
    """The processes below one."""
    children = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            stat = (entry / "stat").read_text()
        except OSError:
            continue
        children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found[1:]


def test_two_processes_are_beside_the_ranks(tmp_path):
    path = script(tmp_path, 'report(f"pid.{rank}", os.getpid()); wait_for("go")')
    job = start("-np", 3, sys.executable, path, tmp_path)
    ranks = set(pids_in(tmp_path, 3).values())
    there = {job.pid, *below(job.pid)}
    (tmp_path / "go").touch()
    _, errors = job.communicate(timeout=LIMIT_SECONDS)
    assert job.returncode == 0, errors
    assert ranks < there and len(there - ranks) == 2


def test_what_a_rank_has_left_ends_with_it_and_with_no_other(tmp_path):
    """Also processes in their own session, without a parent or variables."""
    path = script(
        tmp_path,
        """
    made = subprocess.run(["sh", "-c", "env -i setsid sleep 300 >/dev/null 2>&1 & echo $!"],
                          stdout=subprocess.PIPE, text=True)
    report(f"pid.{rank}", int(made.stdout))
    wait_for(f"go.{rank}")
    """,
    )
    job = start("-np", 3, sys.executable, path, tmp_path)
    pids = pids_in(tmp_path, 3)
    for rank in ("1", "0", "2"):
        assert alive(pids[rank])
        (tmp_path / f"go.{rank}").touch()
        gone = pids.pop(rank)
        assert wait_until(lambda gone=gone: not alive(gone))
        assert all(alive(pid) for pid in pids.values())
    _, errors = job.communicate(timeout=LIMIT_SECONDS)
    assert job.returncode == 0, errors


def test_an_agent_below_another_program_ends_its_ranks_with_it(tmp_path):
    """As in a task of Spark; the agent's input stays open."""
    path = script(
        tmp_path,
        """
    def stop(*_):
        report("told", 1)
        sys.exit(0)
    signal.signal(signal.SIGTERM, stop)
    report("pid.0", os.getpid())
    time.sleep(300)
    """,
    )
    program = """
import os, subprocess, sys
from tfring.launch.agents.protocol import agent_command
command = agent_command(os.getpid(), guarded=True)
subprocess.Popen(command, stdin=int(sys.argv[1]), stdout=subprocess.PIPE).wait()
"""
    read, write = os.pipe()
    command = [sys.executable, "-c", program, str(read)]
    above = subprocess.Popen(command, pass_fds=[read], env=environment())
    os.close(read)
    argv = [sys.executable, path, str(tmp_path)]
    job = {"argv": argv, "env": {"TFRING_X_RANK": "0"}, "cwd": str(tmp_path)}
    os.write(write, f"grace 0 60\nstart 0 {json.dumps(job)}\n".encode())
    pids_in(tmp_path, 1)
    there = below(above.pid)
    assert len(there) == 3  # a guardian, too
    os.kill(above.pid, signal.SIGKILL)
    above.wait()
    assert wait_until(lambda: not any(alive(pid) for pid in there))
    assert (tmp_path / "told").exists()
    os.close(write)


@pytest.mark.parametrize(
    "where", [("-np", 2), ("-H", "127.0.0.2:1,127.0.0.3:1")], ids=["here", "elsewhere"]
)
def test_ranks_have_their_time_when_the_launcher_is_killed(tmp_path, where):
    """One saves, and one does not end; nothing of them is left."""
    path = script(
        tmp_path,
        """
    def stop(*_):
        if rank == 0:
            time.sleep(1)
            report("saved", 1)
            sys.exit(0)
    signal.signal(signal.SIGTERM, stop)
    report(f"pid.{rank}.child", subprocess.Popen(["sleep", "300"], start_new_session=True).pid)
    report(f"pid.{rank}", os.getpid())
    while True:
        time.sleep(1)
    """,
    )
    options = (*where, "--stop-timeout", 4)
    job = start(*options, sys.executable, path, tmp_path, PATH=fake_ssh(tmp_path))
    pids = pids_in(tmp_path, 4).values()
    job.kill()
    job.communicate(timeout=LIMIT_SECONDS)
    assert wait_until(lambda: not any(alive(pid) for pid in pids), 25)  # 30 s are the default
    assert (tmp_path / "saved").exists()
