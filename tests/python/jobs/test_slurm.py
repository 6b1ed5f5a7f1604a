"""Jobs under real Slurm daemons, one node per network namespace of this machine."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import time

import pytest
from cluster_programs import (
    ON_TWO_HOSTS,
    PATIENT,
    PATIENT_RUN,
    TRAINING,
    WHO_IS_THERE,
    said_lines,
)
from launcher_tools import LIMIT_SECONDS, ROOT, alive, wait_until, write_script
from slurm_cluster import UNDER_WAY, slurm_cluster

pytest.importorskip("tfring.runtime._native")

BATCH = ROOT / "examples" / "slurm" / "run.sbatch"
needs_clustershell = pytest.mark.skipif(
    importlib.util.find_spec("ClusterShell") is None,
    reason="tfring run reads the hosts of a Slurm job, h[0-1], with it: pip install ClusterShell",
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with slurm_cluster(tmp_path_factory.mktemp("slurm"), nodes=2) as made:
        yield made


def test_srun_starts_the_ranks_and_munge_gives_their_secret(cluster, tmp_path):
    path = write_script(tmp_path, WHO_IS_THERE)
    step = ("srun", "--nodes=2", "--ntasks-per-node=2", sys.executable, path)
    done = cluster.run(*step, **PATIENT)
    assert done.returncode == 0, done.stderr
    assert sorted(map(json.loads, done.stdout.splitlines())) == ON_TWO_HOSTS


@needs_clustershell
def test_tfring_run_takes_the_hosts_of_the_job_and_reaches_them_by_srun(cluster, tmp_path):
    path = write_script(tmp_path, WHO_IS_THERE)
    report = tmp_path / "report.json"
    out = tmp_path / "out"
    options = ("--nodes=2", "--ntasks-per-node=2", f"--output={out}")
    options_of_run = ("--no-merge-lines", "--exit-report", report, *PATIENT_RUN)
    program = (*options_of_run, sys.executable, path)
    job = cluster.submit(BATCH, *options, program=program)
    assert cluster.wait_for_end(job) == "COMPLETED", out.read_text()
    lines = [re.sub(r"^[0-9]+[|] ", "", line) for line in out.read_text().splitlines()]
    said = [json.loads(line) for line in lines if line.startswith("[") and "[tfring]" not in line]
    assert sorted(said) == ON_TWO_HOSTS
    said = json.loads(report.read_text())
    assert [rank["host"] for rank in said["ranks"]] == ["h0", "h0", "h1", "h1"]


class Training:
    """A job with the training above, and the lines of its ranks."""

    def __init__(self, cluster, folder, patience=PATIENT_RUN):
        self._cluster, self._folder = cluster, folder
        self.out = folder / "out"
        path = write_script(folder, TRAINING)
        program = ("--min-np", 1, *patience, sys.executable, path, folder)
        nodes = ("--nodes=2", "--ntasks-per-node=1", f"--output={self.out}")
        self.job = cluster.submit(BATCH, *nodes, program=program)

    def stop(self):
        """Ends the training; returns the final state of the job."""
        (self._folder / "stop").touch()
        return self._cluster.wait_for_end(self.job)

    def wait(self, after=0, **wanted):
        """Waits for a line with these values after `after` lines; returns the first."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while not (found := self.find(after, **wanted)):
            over = self._cluster.state(self.job) not in UNDER_WAY
            assert not over and time.monotonic() < deadline, self.out.read_text()
            time.sleep(0.1)
        return found[0]

    def find(self, after=0, **wanted):
        """The lines with these values after `after` lines."""
        lines = said_lines(self._folder)
        return [line for line in lines[after:] if wanted.items() <= line.items()]


@needs_clustershell
def test_an_elastic_job_leaves_when_it_is_warned_and_goes_on_when_it_is_requeued(cluster, tmp_path):
    job = Training(cluster, tmp_path)
    # As Slurm itself does before the time is up (--signal=B:USR1); the script requeues the job.
    job.wait(event="step", run=0, size=2)
    assert cluster.run("scancel", "--batch", "--signal=USR1", job.job).returncode == 0
    first = job.wait(event="published", run=0)
    begin = job.wait(event="train", run=1)
    assert begin["step"] == first["step"] > 0
    # Slurm itself sends SIGTERM to all processes. If srun gets its own first, it kills those on the
    # other node. Whoever is left publishes, at the latest the rank beside `tfring run`, alone.
    step = job.wait(event="step", run=1, size=2)["step"]
    assert cluster.run("scontrol", "requeue", job.job).returncode == 0
    begin = job.wait(event="train", run=2)
    published = job.find(event="published", run=1)
    assert published and begin["step"] == published[-1]["step"] >= step, job.out.read_text()
    assert job.stop() == "COMPLETED", job.out.read_text()


@needs_clustershell
def test_an_elastic_job_goes_on_without_a_node_that_is_lost(cluster, tmp_path):
    job = Training(cluster, tmp_path, patience=PATIENT_RUN[:2])
    step = job.wait(event="step", size=2)["step"]
    lost = [line["pid"] for line in job.find(host="h1")]
    cluster.hosts.connect(1, False)
    try:
        begin = job.wait(len(job.find()), event="train", size=1, host="h0")
        assert begin["step"] >= step
        # On the node itself, which is still up, nothing of the job is left either.
        assert wait_until(lambda: not any(map(alive, lost)), LIMIT_SECONDS)
    finally:
        cluster.hosts.connect(1, True)
    assert job.stop() == "COMPLETED", job.out.read_text()
