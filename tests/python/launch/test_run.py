"""`tfring run` as a user sees it. No runtime is needed: the ranks are plain scripts."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys

import pytest
from launcher_tools import (
    LIMIT_SECONDS,
    alive,
    environment,
    finish,
    pids_in,
    run,
    run_command,
    script,
    start,
    wait_until,
)


def test_ranks_get_their_variables_and_no_command_line_has_the_secret(tmp_path):
    path = script(
        tmp_path,
        """
    names = "SIZE LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE".split()
    assert len(os.environ["TFRING_SECRET"]) == 64
    for pid in os.listdir("/proc"):
        if pid.isdigit():
            try:
                line = open(f"/proc/{pid}/cmdline").read()
            except OSError:
                continue
            assert os.environ["TFRING_SECRET"] not in line
    print(rank, *[os.environ["TFRING_X_" + n] for n in names], sys.stdin.read() == "")
    """,
    )
    done = run("-np", 3, sys.executable, path, tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"{r}| {r} 3 {r} 3 0 1 True" for r in range(3)]


def test_ranks_may_open_as_many_files_as_the_hard_limit_allows(tmp_path):
    path = script(
        tmp_path,
        """
    import resource
    print(*resource.getrlimit(resource.RLIMIT_NOFILE))
    """,
    )
    limited = ["sh", "-c", 'ulimit -Sn 200 && ulimit -Hn 512 && exec "$@"', "sh"]
    done = finish([*limited, *run_command("-np", 1, sys.executable, path, tmp_path)])
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("|")[-1].split() == ["512", "512"]


def test_others_get_time_to_report_and_are_killed_if_they_ignore_sigterm(tmp_path):
    path = script(
        tmp_path,
        """
    if rank == 0:
        sys.exit(5)
    if rank == 1:
        time.sleep(1)
        print("rank 1 had its say", file=sys.stderr)
        sys.exit(1)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(300)
    """,
    )
    done = run("-np", 3, sys.executable, path, tmp_path)
    assert done.returncode == 5
    assert "1| rank 1 had its say" in done.stderr
    assert "Rank 2 was stopped." in done.stderr
    assert "Rank 1, too, ended with exit code 1." in done.stderr


def test_a_command_whose_name_is_no_text():
    command = [*run_command("-np", 1), b"/no/such/\xff"]
    done = subprocess.run(command, capture_output=True, env=environment(), check=False)
    assert done.returncode == 127
    assert b"0| tfring run: cannot start /no/such/\xff: " in done.stderr


def test_a_folder_that_is_gone_is_told(tmp_path):
    (tmp_path / "gone").mkdir()
    command = shlex.join(run_command("-np", 1, "true"))
    done = finish(["sh", "-c", f"cd {tmp_path}/gone && rmdir ../gone && {command}"])
    assert done.returncode == 2
    assert done.stderr.startswith("tfring run: the folder in which tfring run was started is gone")


JOINS = "import tfring; tfring.init()"


@pytest.mark.parametrize(
    ("options", "program", "more", "told"),
    [
        (["-np", 2], "pass", {}, "needs --horovod. A program"),
        (["-np", 2], JOINS, {}, ""),
        (["-np", 2], JOINS, {"TFRING_X_ELASTIC_WORKER": "1"}, ""),  # of a worker that starts it
    ],
)
def test_a_job_that_no_rank_has_joined_is_told_so(options, program, more, told):
    """Each rank trained its own model, perhaps because the script is for Horovod."""
    done = run(*options, sys.executable, "-c", program, **more)
    assert done.returncode == 0
    assert ("no process called tfring.init()" in done.stderr) == bool(told), done.stderr
    assert told in done.stderr


def test_second_interrupt_does_not_wait(tmp_path):
    path = script(
        tmp_path,
        """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    report(f"pid.{rank}", os.getpid())
    time.sleep(300)
    """,
    )
    job = start("-np", 2, sys.executable, path, tmp_path)
    pids = pids_in(tmp_path, 2)
    job.send_signal(signal.SIGINT)
    assert not wait_until(lambda: job.poll() is not None, 1.0)
    job.send_signal(signal.SIGINT)
    _, err = job.communicate(timeout=LIMIT_SECONDS)
    assert job.returncode == 137 and "stopped by SIGINT" in err
    assert not any(alive(pid) for pid in pids.values())


def test_interrupt_after_a_failure_hides_nothing(tmp_path):
    path = script(
        tmp_path,
        """
    if rank == 1:
        raise ValueError("the cause")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: report("pid.asked", os.getpid()))
    report(f"pid.{rank}", os.getpid())
    while True:
        time.sleep(1)
    """,
    )
    job = start("-np", 2, sys.executable, path, tmp_path)
    pids = pids_in(tmp_path, 2)  # rank 0, and that it was asked to end
    job.send_signal(signal.SIGINT)
    _, err = job.communicate(timeout=LIMIT_SECONDS)
    assert job.returncode == 1
    assert re.search(r"^tfring: Rank 1 failed in .*: ValueError: the cause\.$", err, re.MULTILINE)
    assert not any(alive(pid) for pid in pids.values())


def test_closed_output_ends_the_job(tmp_path):
    path = script(
        tmp_path,
        """
    report(f"pid.{rank}", os.getpid())
    while True:
        print("line", flush=True)
        time.sleep(0.01)
    """,
    )
    job = start("-np", 2, sys.executable, path, tmp_path)
    pids = pids_in(tmp_path, 2)
    assert job.stdout is not None
    job.stdout.close()
    assert job.wait(60) == 141
    assert wait_until(lambda: not any(alive(pid) for pid in pids.values()))
    assert job.stderr is not None
    job.stderr.close()
