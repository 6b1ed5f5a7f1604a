"""`tfring run -H` with OpenSSH between hosts that are network namespaces of this machine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import time

import pytest
from cluster_programs import ON_TWO_HOSTS, PATIENT_RUN, TRAINING, WHO_IS_THERE, said_lines
from launcher_tools import LIMIT_SECONDS, pids_in, run_command, wait_until, write_script
from ssh_hosts import ssh_hosts

pytest.importorskip("tfring.runtime._native")

LEAVES = """
    import os, signal, sys, time

    rank = os.environ["TFRING_X_RANK"]

    def stop(*_):
        time.sleep(1)
        print("checkpoint written", flush=True)
        sys.exit(0)

    signal.signal(signal.SIGTERM, stop)
    with open(f"{sys.argv[1]}/pid.{rank}", "w") as file:
        file.write(f"{os.getpid()}\\n")
    time.sleep(300)
"""


@pytest.fixture(scope="module")
def ready(tmp_path_factory):
    with ssh_hosts(tmp_path_factory.mktemp("ssh"), 2) as hosts:
        yield hosts


@pytest.fixture
def made(ready):
    """The hosts; leftovers of a failed test do not disturb the next one."""
    yield ready
    for pid in [*ready.pids(0), *ready.pids(1)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def nobody_on(made, host):
    return wait_until(lambda: not made.pids(host), LIMIT_SECONDS)


def test_ranks_on_both_hosts(made, tmp_path):
    program = (sys.executable, write_script(tmp_path, WHO_IS_THERE))
    job = made.start(*run_command("-H", "h0:2,h1:2", *PATIENT_RUN, *program))
    out, errors = job.communicate(timeout=LIMIT_SECONDS)
    assert job.returncode == 0, errors
    lines = [re.sub(r"^[0-9]+[|] ", "", line) for line in out.splitlines()]
    assert sorted(map(json.loads, lines)) == ON_TWO_HOSTS
    assert nobody_on(made, 0) and nobody_on(made, 1)


def test_a_signal_to_all_processes_beside_the_launcher_leaves_all_ranks_time(made, tmp_path):
    """A scheduler that ends a job signals its ssh processes, too."""
    program = (sys.executable, write_script(tmp_path, LEAVES), tmp_path)
    job = made.start(*run_command("-H", "h0:1,h1:1", *PATIENT_RUN, *program))
    pids_in(tmp_path, 2)
    for pid in made.pids(0):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    out, errors = job.communicate(timeout=LIMIT_SECONDS)
    assert job.returncode == 75, errors
    assert sorted(out.splitlines()) == [f"{rank}| checkpoint written" for rank in (0, 1)]


def test_a_host_that_is_cut_off_ends_a_job_whose_ranks_stay(made, tmp_path):
    program = (sys.executable, write_script(tmp_path, LEAVES), tmp_path)
    report = tmp_path / "report.json"
    job = made.start(
        *run_command(
            "-H",
            "h0:1,h1:1",
            "--exit-report",
            report,
            *PATIENT_RUN[:2],
            "--agent-timeout",
            5,
            *program,
        )
    )
    pids_in(tmp_path, 2)
    made.hosts.connect(1, False)
    try:
        _, errors = job.communicate(timeout=LIMIT_SECONDS)
        assert nobody_on(made, 0) and nobody_on(made, 1)
    finally:
        made.hosts.connect(1, True)
    assert job.returncode == 255, errors
    first = json.loads(report.read_text())["first_failure"]
    assert first["rank"] == 1 and "h1 gave no sign of life" in first["reason"]


@pytest.mark.slow
def test_an_elastic_job_goes_on_without_a_host_that_is_cut_off(made, tmp_path):
    program = (sys.executable, write_script(tmp_path, TRAINING), tmp_path)
    report, events = tmp_path / "report.json", tmp_path / "events"
    files = ("--exit-report", report, "--events", events, *PATIENT_RUN[:2])
    job = made.start(*run_command("--min-np", 1, "-H", "h0:1,h1:1", *files, *program))

    def wait(after=0, **wanted):
        deadline = time.monotonic() + LIMIT_SECONDS
        while True:
            for line in said_lines(tmp_path)[after:]:
                if wanted.items() <= line.items():
                    return line
            assert job.poll() is None and time.monotonic() < deadline, job.communicate()
            time.sleep(0.05)

    step = wait(event="step", size=2)["step"]
    made.hosts.connect(1, False)
    try:
        alone = wait(len(said_lines(tmp_path)), event="train", size=1, host="h0")
        assert alone["step"] >= step
        assert nobody_on(made, 1)
        (tmp_path / "stop").touch()
        _, errors = job.communicate(timeout=LIMIT_SECONDS)
    finally:
        made.hosts.connect(1, True)
    assert job.returncode == 0, errors
    assert nobody_on(made, 0)
    said = [json.loads(line) for line in events.read_text().splitlines()]
    assert "h1" in [one["host"] for one in said if one["event"] == "host_silent"]
    assert json.loads(report.read_text())["exit_code"] == 0
