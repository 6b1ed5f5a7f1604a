"""The scripts for Slurm in examples/slurm and README.md, and ways of srun to start ranks."""

from __future__ import annotations

import json
import os
import re
import sys

import pytest
from cluster_programs import ON_TWO_HOSTS, PATIENT, PATIENT_RUN, WHO_IS_THERE
from launcher_tools import ROOT, finish, write_script
from slurm_cluster import slurm_cluster

pytest.importorskip("tfring.runtime._native")

FOLDER = ROOT / "examples" / "slurm"
# Prints rank, host, and the GPUs of the rank.
MY_GPUS = """
    import os, socket
    import tfring as hvd

    hvd.init()
    print("GPUS", hvd.rank(), socket.gethostname(), os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with slurm_cluster(tmp_path_factory.mktemp("slurm"), nodes=2) as made:
        yield made


def readme_script(folder):
    """The script in README.md, as a file."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```bash\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    (script,) = [block for block in blocks if "#SBATCH" in block]
    path = folder / "job.sbatch"
    path.write_text(script)
    return path


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("run.sbatch", ["--gpus-per-task=1"]),
        ("srun.sbatch", []),
        ("README.md", []),
    ],
)
def test_slurm_would_run_the_scripts(cluster, tmp_path, name, options):
    path = readme_script(tmp_path) if name == "README.md" else FOLDER / name
    done = cluster.run("sbatch", "--test-only", *options, path, "python", "train.py")
    assert done.returncode == 0 and "to start at" in done.stderr, done.stderr
    beyond = cluster.run("sbatch", "--test-only", *options, "--nodes=3", path)
    assert beyond.returncode != 0, "Slurm looks at the options"


@pytest.mark.parametrize("name", ["run.sbatch", "srun.sbatch", "README.md"])
@pytest.mark.parametrize(
    ("code", "lives", "again"), [(75, "7", True), (3, "", False), (75, "100", False)]
)
def test_a_job_is_requeued_after_its_checkpoint_alone(tmp_path, name, code, lives, again):
    assert requeued(tmp_path, name, code, lives) == again


def requeued(folder, name, code, lives):
    """Whether a script requeues its job when its ranks end with a code; Slurm is a fake."""
    path = readme_script(folder) if name == "README.md" else FOLDER / name
    for command, text in (
        ("tfring", f"exit {code}"),
        ("srun", f"exit {code}"),
        ("scontrol", f"echo $* > {folder}/requeued"),
    ):
        (folder / command).write_text(f"#!/bin/sh\n{text}\n")
        (folder / command).chmod(0o755)
    search = f"{folder}:{os.environ['PATH']}"
    variables = {"PATH": search, "SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": lives}
    done = finish(["bash", str(path), "python", "train.py"], **variables)
    assert done.returncode == code, done.stderr
    return (folder / "requeued").exists() and (folder / "requeued").read_text() == "requeue 7\n"


def test_tfring_run_needs_no_options_in_an_allocation(cluster, tmp_path):
    pytest.importorskip("ClusterShell")
    path = write_script(tmp_path, WHO_IS_THERE)
    job = ("salloc", "--nodes=2", "--ntasks-per-node=2", "tfring", "run", sys.executable, path)
    done = cluster.run(*job, **PATIENT, TFRING_LOG_LEVEL="warning")
    assert done.returncode == 0, done.stderr
    lines = [re.sub(r"^[0-9]+[|] ", "", line) for line in done.stdout.splitlines()]
    assert sorted(map(json.loads, lines)) == ON_TWO_HOSTS


def gpus_of_ranks(cluster, folder, script, options, program):
    """The output of MY_GPUS in a job, by rank."""
    path = write_script(folder, MY_GPUS)
    out = folder / "out"
    nodes = ("--nodes=2", "--ntasks-per-node=2", f"--output={out}")
    job = cluster.submit(script, *nodes, *options, program=(*program, sys.executable, path))
    assert cluster.wait_for_end(job) == "COMPLETED", out.read_text()
    lines = re.findall(r"GPUS (\d) (\S+) (\S+)$", out.read_text(), re.MULTILINE)
    return {int(rank): (host, gpus.split(",")) for rank, host, gpus in lines}


@pytest.mark.parametrize(
    "options",
    [
        ["--gres=gpu:2"],
        ["--gpus=4"],  # Slurm may give three to one host and one to the other
        ["--gpus-per-task=1", "--cpus-per-task=2", "--mem-per-cpu=100", "--gpu-bind=single:1"],
    ],
)
def test_ranks_of_tfring_run_see_all_gpus_of_the_job_on_their_host(cluster, tmp_path, options):
    """Also on hosts that srun reaches: there a step gets what it asks for."""
    pytest.importorskip("ClusterShell")
    found = gpus_of_ranks(
        cluster, tmp_path, FOLDER / "run.sbatch", options, ["--no-merge-lines", *PATIENT_RUN]
    )
    assert [found[rank][0] for rank in range(4)] == ["h0", "h0", "h1", "h1"]
    counts = [len(found[rank][1]) for rank in range(4)]
    assert counts[:1] * 2 + counts[-1:] * 2 == counts and counts[0] + counts[-1] == 4
    assert "--gpus=4" in options or counts[0] == 2
