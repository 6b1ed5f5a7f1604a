"""The scripts for Slurm in examples/slurm and README.md, and ways of srun to start ranks."""

from __future__ import annotations

import json
import os
import re
import sys

import pytest
from cluster_programs import ON_TWO_HOSTS, PATIENT, PATIENT_RUN, WHO_IS_THERE
from launcher_tools import LIMIT_SECONDS, ROOT, finish, wait_until, write_script
from slurm_cluster import UNDER_WAY, slurm_cluster

pytest.importorskip("tfring.runtime._native")

FOLDER = ROOT / "examples" / "slurm"
# Prints rank, host, and the GPUs of the rank.
MY_GPUS = """
    import os, socket
    import tfring as hvd

    hvd.init()
    print("GPUS", hvd.rank(), socket.gethostname(), os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
"""
# The first argument is a folder for checkpoints. At the end of each epoch rank 0 says what its
# weights are. While there is a file named "slow", an epoch takes a second more.
TRAINING = """
    import hashlib, os, sys, time
    import keras
    import numpy as np
    import tfring.keras as hvd

    hvd.init()
    hvd.set_random_seed(3)
    draw = np.random.default_rng(1)
    x = draw.normal(size=(256, 8)).astype("float32")
    y = (x.sum(axis=1) > 0).astype("int32")
    layers = [keras.Input((8,)), keras.layers.Dense(16, activation="relu")]
    model = keras.Sequential([*layers, keras.layers.Dropout(0.2), keras.layers.Dense(2)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(1e-2)), loss)

    class Say(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if hvd.rank() == 0:
                weights = b"".join(w.tobytes() for w in model.get_weights())
                digest = hashlib.sha256(weights).hexdigest()[:16]
                run = os.environ.get("SLURM_RESTART_COUNT", 0)
                print("EPOCH", run, epoch, digest, flush=True)
            if os.path.exists("slow"):
                time.sleep(1)

    given = {"epochs": int(sys.argv[2]), "policy": 32, "callbacks": [Say()], "verbose": 0}
    hvd.elastic.fit(model, (x, y), checkpoint=sys.argv[1], **given)
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


class Training:
    """A job with the training above."""

    def __init__(self, cluster, folder, script, epochs, slow):
        folder.mkdir()
        if slow:
            (folder / "slow").touch()
        text = write_script(folder, TRAINING, name="steps.py")
        arguments = ["steps.py", str(folder / "checkpoints"), str(epochs)]
        start = f"import runpy, sys; sys.argv[:] = {arguments}; runpy.run_path({text!r})\n"
        (folder / "train.py").write_text(start)
        self._cluster = cluster
        self.out = folder / "out"
        options = ("--ntasks-per-node=1", f"--output={self.out}", f"--chdir={folder}")
        self.job = cluster.submit(script, *options)

    def limit(self, minutes):
        """Sets the time limit of the job."""
        given = (f"JobId={self.job}", f"TimeLimit={minutes}")
        assert self._cluster.run("scontrol", "update", *given).returncode == 0

    def digests(self):
        """The digests of the weights, by run of the job and epoch."""
        text = self.out.read_text() if self.out.exists() else ""
        lines = re.findall(r"EPOCH (\d) (\d+) (\w{16})$", text, re.MULTILINE)
        return {(int(run), int(epoch)): digest for run, epoch, digest in lines}

    def wait_for(self, condition):
        def found():
            over = self._cluster.state(self.job) not in UNDER_WAY
            return over or condition(self.digests())

        assert wait_until(found, LIMIT_SECONDS) and condition(self.digests()), self.out.read_text()


@pytest.mark.slow
def test_a_job_goes_on_after_its_time_limit_with_the_weights_that_it_had(cluster, tmp_path):
    script = readme_script(tmp_path)
    epochs = 150  # with a second each longer than Slurm takes to warn the job
    whole = Training(cluster, tmp_path / "whole", script, epochs, slow=False)
    assert cluster.wait_for_end(whole.job) == "COMPLETED", whole.out.read_text()
    wanted = {epoch: digest for (_, epoch), digest in whole.digests().items()}
    assert sorted(wanted) == list(range(epochs)) and len(set(wanted.values())) == epochs

    job = Training(cluster, tmp_path / "cut", script, epochs, slow=True)
    job.wait_for(lambda digests: (0, 1) in digests)
    # Slurm counts limits in minutes, and warns up to half a minute early. So the warning comes at
    # once or in half a minute, and then there are 120 s to write the checkpoint.
    minutes = int(cluster.field("job", job.job, "RunTime").split(":")[1])
    job.limit(minutes + 3)
    job.wait_for(lambda _: cluster.field("job", job.job, "Restarts") == "1")
    job.limit(60)
    (tmp_path / "cut" / "slow").unlink()
    assert cluster.wait_for_end(job.job) == "COMPLETED", job.out.read_text()
    found = job.digests()
    first, again = ([epoch for run, epoch in found if run == part] for part in (0, 1))
    assert first == list(range(len(first))) and again[0] in (len(first), len(first) - 1)
    assert again[-1] == epochs - 1 and len(first) < epochs
    assert {epoch: digest for (_, epoch), digest in found.items()} == wanted
