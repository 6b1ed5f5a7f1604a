"""`tfring run` of elastic jobs: hosts that a script names, that fail, and that come back."""

from __future__ import annotations

import os
import re
import signal
import socket
from pathlib import Path

import pytest
from elastic_runs import ElasticRun
from launcher_tools import fake_ssh

pytest.importorskip("tfring.runtime._native")


class Hosts:
    """A discovery script, and the hosts that it prints."""

    def __init__(self, folder):
        self._file = folder / "hosts"
        self.script = folder / "discover.sh"
        self.script.write_text(f"#!/bin/sh\ncat {self._file}\n")
        self.script.chmod(0o755)

    def set(self, *lines):
        part = self._file.with_suffix(".part")
        part.write_text("".join(f"{line}\n" for line in lines))
        part.rename(self._file)


@pytest.fixture
def hosts(tmp_path):
    return Hosts(tmp_path)


def test_hosts_come_and_go_with_what_the_script_prints(tmp_path, hosts):
    hosts.set("localhost:1")
    options = ("-np", 1, "--min-np", 1, "--max-np", 4, "--host-discovery-script", hosts.script)
    with ElasticRun(tmp_path, *options, "--slots", 2) as job:
        job.trains(lambda m: m == [1])
        hosts.set("127.0.0.1", "localhost:1")
        # The first host keeps rank 0.
        assert job.trains(lambda m: len(m) == 3)[0] == 1
        here = re.escape(socket.gethostname())
        job.heard(rf"the hosts are now {here}:1, 127\.0\.0\.1:2")
        hosts.set("127.0.0.1:2:3")
        job.heard(r"the host discovery script failed, the hosts stay as they are: line 1")
        hosts.set("127.0.0.1")
        job.heard("the host discovery script works again")
        assert 1 not in job.trains(lambda m: len(m) == 2 and 1 not in m)
        job.ask("stop")
        assert job.finish() == 0
    ends = [line for line in job.said if line["event"] == "end"]
    assert sorted(line["rank"] for line in ends) == [0, 1]


def test_the_job_waits_for_hosts_and_gives_up_in_time(tmp_path, hosts):
    hosts.set()
    options = ("-np", 2, "--min-np", 2, "--host-discovery-script", hosts.script)
    waits = ("--start-timeout", 1, "--elastic-timeout", 3)
    with ElasticRun(tmp_path, *options, *waits) as job:
        assert job.finish() == 1
    assert any("there were fewer than 2 workers for 3 s" in line for line in job.errors)
    assert job.said == []


def agent_of(job, worker):
    """The agent of the host of a worker: the last of the agents above it."""
    pid, found = job.pid(worker), None
    while pid not in (1, job.process.pid):
        if b"tfring.launch.agents" in Path(f"/proc/{pid}/cmdline").read_bytes():
            found = pid
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    assert found is not None
    return found


def test_the_agent_of_each_host_may_be_asked_to_end_and_killed(tmp_path):
    options = ("-np", 2, "--min-np", 1, "-H", "localhost:1,127.0.0.2:1")
    with ElasticRun(tmp_path, *options, PATH=fake_ssh(tmp_path)) as job:
        members = job.trains(lambda m: m == [1, 2])
        for rank in (1, 0):
            lost = members[rank]
            # A scheduler that ends a job asks all its processes; an agent waits for its ranks.
            for number in (signal.SIGINT, signal.SIGTERM):
                os.kill(agent_of(job, lost), number)
            os.kill(agent_of(job, lost), signal.SIGKILL)
            kept = members[1 - rank]
            members = job.trains(lambda m, lost=lost: len(m) == 2 and lost not in m)
            assert kept in members
        job.ask("stop")
        assert job.finish() == 0
    assert max(line["worker"] for line in job.said) == 4  # each was replaced once


def test_a_host_that_cannot_be_reached_at_first_does_not_end_the_job(tmp_path):
    """The errors of ssh are not errors of the program, however often they come."""
    refused = 'echo "ssh: connect to host node2 port 22: Connection refused" >&2; exit 255'
    options = ("-np", 2, "--min-np", 1, "-H", "localhost:1,127.0.0.2:1", "--start-timeout", 8)
    with ElasticRun(tmp_path, *options, PATH=fake_ssh(tmp_path, refused)) as job:
        assert job.trains(lambda m: len(m) == 1) == [1]
        job.ask("stop")
        assert job.finish() == 0
    tries = [line for line in job.errors if "ssh could not reach the host" in line]
    assert len(tries) >= 3 and not any("the same error" in line for line in job.errors)
