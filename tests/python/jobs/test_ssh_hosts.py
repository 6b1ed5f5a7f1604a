"""`tfring run -H` with OpenSSH between hosts that are network namespaces of this machine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys

import pytest
from cluster_programs import ON_TWO_HOSTS, PATIENT_RUN, WHO_IS_THERE
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
