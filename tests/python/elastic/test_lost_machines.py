"""The failure table of elastic jobs: agents, launchers, hosts, and the paths between hosts.

As in test_failure_table.py a seed chooses when it happens; these are jobs of `tfring run`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
from elastic_runs import TRAINING, ElasticRun, history_of
from launcher_tools import alive, fake_ssh, wait_until
from ssh_hosts import ssh_hosts
from two_hosts import inside, two_hosts

pytest.importorskip("tfring.runtime._native")

# Publishes all the time while it may; a host that is cut off can report only by a file.
PUBLISHING = TRAINING.replace(
    "    @hvd.elastic.run",
    """
    import threading
    from tfring.elastic import process

    def publish():
        link = process.present().link
        while True:
            if link.may_publish():
                with open(f"{FOLDER}/published.{WORKER}", "w") as file:
                    file.write(str(time.monotonic()))
            time.sleep(0.02)

    threading.Thread(target=publish, daemon=True).start()

    @hvd.elastic.run""",
)


def seeds(count):
    """The first seed always; more seeds if tests may take long."""
    more = (pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, count))
    return pytest.mark.parametrize("seed", [0, *more])


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def pause(rng, most=1.0):
    """From within the start of the training to many steps later."""
    time.sleep(rng.uniform(0.0, most))


def gone(pids):
    return wait_until(lambda: not any(alive(pid) for pid in pids), 120)


def finished(job):
    """Ends the training; all ranks have done each step once, from the first one on."""
    job.ask("stop")
    assert job.finish() == 0
    ends = [line for line in job.said if line["event"] == "end"]
    assert {line["history"] for line in ends} == {history_of(ends[0]["step"])}


@seeds(8)
def test_an_agent_is_killed(tmp_path, seed):
    """Its ranks end; the others go on, and the host gets new ranks."""
    rng, report = random.Random(seed), tmp_path / "report.json"
    options = ("-np", 3, "--min-np", 1, "-H", "localhost:1,127.0.0.2:2", "--exit-report", report)
    with ElasticRun(tmp_path, *options, PATH=fake_ssh(tmp_path)) as job:
        assert job.trains(lambda m: len(m) == 3) == [1, 2, 3]
        pause(rng)
        pids = {worker: job.pid(worker) for worker in (1, 2, 3)}
        os.kill(parent(pids[2]), signal.SIGKILL)  # elsewhere
        assert gone([pids[2], pids[3]])
        job.trains(lambda m: len(m) == 3 and not {2, 3} & {*m})
        assert alive(pids[1])
        finished(job)
    ended = {one["worker"]: one for one in json.loads(report.read_text())["workers"]}
    assert all("ssh to its host" in ended[worker]["reason"] for worker in (2, 3)), ended


@seeds(8)
def test_a_launcher_is_killed(tmp_path, seed):
    """While processes start, train, or recover from the loss of one."""
    rng = random.Random(seed)
    with ElasticRun(tmp_path, "-np", 2, "--min-np", 1) as job:
        if rng.random() < 0.8:
            job.trains(lambda m: len(m) == 2)
            if rng.random() < 0.5:
                job.kill(2)
                pause(rng, 0.3)
        else:
            job.wait(lambda: len(job.said) == 2)
        pause(rng)
        pids = [line["pid"] for line in job.said if line["event"] == "start"]
        pids += [parent(pid) for pid in pids if alive(pid)]
        job.process.kill()
        job.process.wait()
        assert gone(pids)


@seeds(5)
def test_a_host_is_cut_from_the_store_and_its_peers(tmp_path, seed):
    """The host of rank 0: it ends, and publishes nothing after the others have gone on."""
    rng = random.Random(seed)
    with two_hosts(tmp_path) as (made, search):
        where = f"{made.address(1)}:1,{made.address(0)}:1"
        options = ("-np", 2, "--min-np", 1, "-H", where)
        first = inside(made, 0)
        with ElasticRun(tmp_path, *options, script=PUBLISHING, inside=first, PATH=search) as job:
            assert job.trains(lambda m: len(m) == 2) == [1, 2]
            pause(rng)
            lost, published = job.pid(1), tmp_path / "published.1"
            assert wait_until(published.exists)
            made.cut(0, 1)
            job.trains(lambda m: m == [2])
            goes_on = time.monotonic()
            assert gone([lost])
            assert float(published.read_text()) < goes_on
            job.heard(f"host {made.address(1)} gave no sign of life")
            finished(job)


@pytest.mark.slow
@seeds(4)
def test_a_path_between_two_hosts_is_cut(tmp_path, seed):
    """Silently and for good, while both reach the coordinator: one of the two ranks leaves."""
    rng = random.Random(seed)
    # How long they try to connect; else as long as they do without it.
    limit = ("--start-timeout", 4) if seed == 0 else ()
    folder = tmp_path / "job"
    folder.mkdir()
    with ssh_hosts(tmp_path, 3) as made:
        options = ("-np", 3, "--min-np", 1, "-H", "h0:1,h1:1,h2:1", *limit)
        first = made.hosts.inside(0)
        with ElasticRun(folder, *options, inside=first, PATH=made.path) as job:
            members = job.trains(lambda m: len(m) == 3)
            pause(rng)
            at = {worker: job.pid(worker) for worker in members}
            hosts = {line["worker"]: line["host"] for line in job.said}
            stays = next(worker for worker in members if hosts[worker] == "h0")
            made.hosts.cut(1, 2)
            two = job.trains(lambda m: len(m) == 2)
            (leaves,) = set(members) - set(two)
            assert stays in two and leaves != stays
            assert gone([at[leaves]]) and all(alive(at[worker]) for worker in two)
            job.heard(f"worker {leaves} .* could not reach each other twice in a row")
            finished(job)
