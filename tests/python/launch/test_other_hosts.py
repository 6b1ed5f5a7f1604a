"""`tfring run` on other hosts, with a fake ssh that runs commands on this host."""

from __future__ import annotations

import json
import os
import re
import signal
import sys

import pytest
from launcher_tools import (
    LIMIT_SECONDS,
    RUN_HERE,
    fake_ssh,
    pids_in,
    run,
    run_python,
    script,
    start,
    write_script,
)
from run_options import run_options

from tfring.launch.hosts.errors import UsageError
from tfring.launch.options.environment import chosen_variable
from tfring.launch.options.resolve import job_options


def test_other_hosts_get_the_environment_but_no_secret_on_the_command_line(tmp_path):
    path = script(
        tmp_path,
        """
    print(rank, os.environ["TFRING_X_CROSS_RANK"], [os.environ.get("TRAINING_DATA")], os.getcwd())
    print(os.environ["TFRING_SECRET"])
    print([os.environ.get(name) for name in ("GIVEN", "CLOUD_TOKEN", "TF_SETTING")])
    """,
    )
    data = "/a b/$c\n'd'=\"e\"=;#`f`\\"
    done = run(
        "-np",
        3,
        "-H",
        "localhost:1,127.0.0.2:2",
        "-p",
        2222,
        "-x",
        "TRAINING_DATA",
        "-x",
        "GIVEN=1",
        sys.executable,
        path,
        tmp_path,
        PATH=fake_ssh(tmp_path),
        TRAINING_DATA=data,
        CLOUD_TOKEN="token",
        TF_SETTING="2",
    )
    assert done.returncode == 0, done.stderr
    here = os.getcwd()
    lines = done.stdout.splitlines()
    for rank, cross_rank in enumerate((0, 1, 0)):
        assert f"{rank}| {rank} {cross_rank} {[data]} {here}" in lines
    log = (tmp_path / "ssh.log").read_text()
    assert log.count("-p 2222 -- 127.0.0.2 ") == 1  # one connection for both ranks
    assert "1| ['1', None, '2']" in lines and "2| ['1', None, '2']" in lines
    secrets = set(re.findall(r"\b[0-9a-f]{64}\b", done.stdout))
    assert len(secrets) == 1 and secrets.pop() not in log
    assert "no process on this host called tfring.init()" in done.stderr


def test_rank_0_on_another_host_passes_on_where_it_listens(tmp_path):
    path = script(
        tmp_path,
        """
    import socket
    where = os.environ["TFRING_RENDEZVOUS_ADDR"], int(os.environ["TFRING_RENDEZVOUS_PORT"])
    if rank == 0:
        with socket.socket(fileno=int(os.environ["TFRING_X_RENDEZVOUS_FD"])) as listener:
            listener.settimeout(30)
            listener.listen()
            print("heard", listener.accept()[0].recv(9).decode())
    else:
        while True:  # until rank 0 listens
            try:
                socket.create_connection(where, 30).sendall(b"something")
                break
            except ConnectionRefusedError:
                time.sleep(0.01)
    """,
    )
    hosts = "127.0.0.2:1,127.0.0.3:1"
    ssh = fake_ssh(tmp_path, "echo what a login shell prints\n" + RUN_HERE)
    done = run("-H", hosts, sys.executable, path, tmp_path, PATH=ssh)
    assert done.returncode == 0, done.stderr
    assert "0| heard something" in done.stdout


def test_host_that_cannot_be_reached(tmp_path):
    path = script(tmp_path, "\n    pass\n")
    ssh = fake_ssh(tmp_path, "echo 'ssh: no route to host' >&2; exit 255")
    done = run("-H", "127.0.0.2:2", sys.executable, path, tmp_path, PATH=ssh)
    assert done.returncode == 255
    assert "no route to host" in done.stderr and "ssh could not reach the host" in done.stderr


def test_death_by_signal_on_another_host_is_named(tmp_path):
    number = signal.SIGSEGV
    path = script(
        tmp_path,
        f"""
    if rank == 1:
        os.kill(os.getpid(), {int(number)})
    time.sleep(60)
    """,
    )
    done = run("-H", "127.0.0.2:2", sys.executable, path, tmp_path, PATH=fake_ssh(tmp_path))
    assert done.returncode == 128 + number
    assert f"signal {int(number)} ({number.name}" in done.stderr


def test_a_host_has_one_name_everywhere(tmp_path):
    """The launcher and the ranks use the name of -H, although the ranks know a different one."""
    path = script(
        tmp_path,
        """
    import tfring
    from tfring.observe.recorder.own import own_path
    from tfring.observe.recorder.reader import read_header
    tfring.init()
    print(read_header(own_path())["host"])
    """,
    )
    report, events = tmp_path / "report", tmp_path / "events"
    options = ("-H", "127.0.0.2:2", "--exit-report", report, "--events", events)
    done = run(*options, sys.executable, path, tmp_path, PATH=fake_ssh(tmp_path))
    assert sorted(done.stdout.splitlines()) == ["0| 127.0.0.2", "1| 127.0.0.2"], done.stderr
    assert "  2 ranks on 127.0.0.2  " in done.stderr
    assert {rank["host"] for rank in json.loads(report.read_text())["ranks"]} == {"127.0.0.2"}
    told = [json.loads(line) for line in events.read_text().splitlines()]
    assert {event["host"] for event in told if "host" in event} == {"127.0.0.2"}


def test_signals_and_long_output_of_another_host(tmp_path):
    path = script(
        tmp_path,
        """
    def stop(*_):
        for number in range(20000):
            print(number, "x" * 50)
        print("error output", file=sys.stderr, flush=True)
        sys.exit(0)
    signal.signal(signal.SIGTERM, stop)
    report(f"pid.{rank}", os.getpid())
    time.sleep(60)
    """,
    )
    job = start("-H", "127.0.0.2:2", sys.executable, path, tmp_path, PATH=fake_ssh(tmp_path))
    pids_in(tmp_path, 2)
    job.send_signal(signal.SIGTERM)
    out, errors = job.communicate(timeout=LIMIT_SECONDS)
    assert job.returncode == 75
    for rank in range(2):
        # A line that stays unfinished for a while is written as far as it has come.
        begin = f"{rank}| "
        mine = [x.removeprefix(begin) for x in out.splitlines() if x.startswith(begin)]
        assert "".join(mine) == "".join(f"{number} {'x' * 50}" for number in range(20000))
        assert f"{rank}| error output" in errors


def test_ssh_that_never_answers_ends_in_time(tmp_path):
    path = script(tmp_path, "\n    pass\n")
    ssh = fake_ssh(tmp_path, "echo welcome to this host; exec sleep 60")
    done = run("-H", "127.0.0.2:2", "--start-timeout", 1, sys.executable, path, tmp_path, PATH=ssh)
    assert done.returncode == 2
    assert "did not answer within 1 s" in done.stderr


SRUN = """\
printf '%s\\n' "$*" >> "${0%/bin/srun}/srun.log"
while [[ "$1" == --* ]]; do shift; done
exec env -i PATH=/usr/bin:/bin HOME=/ "$@"
"""


def test_hosts_that_slurm_gives_are_reached_by_srun(tmp_path):
    """It is not told what each task gets: all ranks of a host would share one task's GPU."""
    names = ("TFRING_X_CROSS_RANK", "SLURM_GPUS_PER_TASK", "SLURM_CPUS_PER_TASK")
    path = script(tmp_path, "\n    print(rank, *map(os.environ.get, sys.argv[2:]))\n")
    told = """echo "$SLURM_GPUS_PER_TASK,$SLURM_CPUS_PER_TASK," > "${0%/bin/srun}/told"\n"""
    search = fake_ssh(tmp_path, told + SRUN)
    (tmp_path / "bin" / "ssh").rename(tmp_path / "bin" / "srun")
    slurm = {"SLURM_JOB_NODELIST": "127.0.0.2,127.0.0.3", "SLURM_TASKS_PER_NODE": "2(x2)"}
    slurm |= {"SLURM_GPUS_PER_TASK": "1", "SLURM_CPUS_PER_TASK": "6"}
    done = run(sys.executable, path, tmp_path, *names, PATH=search, **slurm)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.splitlines()) == {f"{r}| {r} {r // 2} 1 6" for r in range(4)}
    assert (tmp_path / "told").read_text() == ",,\n"
    lines = (tmp_path / "srun.log").read_text().splitlines()
    assert len(lines) == 2
    for host, line in zip(("127.0.0.2", "127.0.0.3"), lines, strict=True):
        assert f"--nodelist={host} " in line and "--overlap" in line and "SECRET" not in line


def test_srun_only_where_slurm_has_given_the_hosts(tmp_path, monkeypatch):
    def shell(*options):
        return job_options(run_options(*options)).shell.command("h", ["x"])[0]

    monkeypatch.setenv("SLURM_JOB_NODELIST", "a,b")
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "2(x2)")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shell() == "ssh"  # there is no srun
    (tmp_path / "srun").touch(0o755)
    assert shell() == "srun"
    assert shell("-H", "a:2") == "ssh" and shell("--start-agents", "ssh") == "ssh"
    assert shell("-H", "a:2", "--start-agents", "srun") == "srun"


def test_what_x_asks_for(monkeypatch):
    monkeypatch.setenv("A", "1")
    monkeypatch.delenv("B", raising=False)
    assert [chosen_variable(x) for x in ("A", "B=2", "C=")] == [("A", "1"), ("B", "2"), ("C", "")]
    with pytest.raises(UsageError, match="is not set here"):
        chosen_variable("B")
    with pytest.raises(UsageError, match="NAME=VALUE"):
        chosen_variable("1=2")


def test_variables_for_a_function_on_another_host(tmp_path):
    path = write_script(
        tmp_path,
        """
        import os
        import tfring

        names = ["TF_X", "CLOUD_TOKEN", "GIVEN", "BOTH"]
        get = lambda: [os.environ.get(name) for name in names]
        own = {"GIVEN": "a b", "BOTH": "given", "PYTHONPATH": "/nowhere"}
        if __name__ == "__main__":
            print(tfring.run(get, hosts="127.0.0.2:1", env=own))
            print(tfring.run(get, hosts="127.0.0.2:1", env=own, no_env=True))
            print(tfring.run(get, hosts="localhost:1", env=own, no_env=True))
        """,
    )
    variables = {"TF_X": "1", "CLOUD_TOKEN": "token", "BOTH": "here"}
    done = run_python(path, PATH=fake_ssh(tmp_path), **variables)
    assert done.stdout.splitlines() == [
        "[['1', None, 'a b', 'given']]",
        "[[None, None, 'a b', 'given']]",
        "[['1', 'token', 'a b', 'given']]",  # this host
    ], done.stderr
