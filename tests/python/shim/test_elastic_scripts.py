"""Unmodified elastic scripts for Horovod, with Keras 2: workers are lost, and come and go."""

from __future__ import annotations

import importlib.util
import json
import re
import socket
import sys

import launcher_tools as tools
import numpy as np
import pytest
from tiers import cases, slow

pytest.importorskip("tfring.runtime._native")
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tf_keras") is None, reason="needs tf_keras"
)

SCRIPTS = tools.ROOT / "tests" / "horovod_scripts"
HERE = socket.gethostname()
# Two hosts, as Horovod's own tests have them.
TWO_HOSTS = ("-np", 2, "--min-np", 1, "-H", "localhost:1,127.0.0.1:1")
# What horovodrun does with a host on which a worker fails.
HOROVODS_RULE = ("--blacklist-hosts",)
ROWS = np.random.default_rng(1).normal(size=(12, 3)).astype(np.float32)


# Arguments: a rank, the path of a script, and the script's arguments.
KILLER = """
    import os, runpy, signal, sys

    victim, script, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    sys.argv, sys.path[0] = sys.argv[2:], os.path.dirname(script)

    import faults
    import horovod.tensorflow as hvd

    once = faults.once
    faults.once = lambda folder, name: False  # nothing else goes wrong
    commit = hvd.elastic.State.commit

    def commit_and_die(state):
        commit(state)
        if hvd.rank() == victim and hvd.size() == 2 and once(folder, "killed"):
            os.kill(os.getpid(), signal.SIGKILL)

    hvd.elastic.State.commit = commit_and_die
    runpy.run_path(script, run_name="__main__")
"""


class Done:
    """A job that is over: what its workers and the launcher have said.

    Args:
        folder: For the files of the job.
        script: Which one.
        *options: Of `tfring run`.
        kills: The rank that is killed behind its first commit, in the place of what the script
            does to itself; None: no rank is.
    """

    def __init__(self, folder, script, *options, kills=None):
        limits = ("--start-timeout", tools.LIMIT_SECONDS, "--verbose", "--horovod")
        program = (sys.executable, SCRIPTS / script, folder)
        if kills is not None:
            killer = tools.write_script(folder, KILLER, "killer.py")
            program = (sys.executable, killer, kills, *program[1:])
        done = tools.run(*limits, *options, *program, TF_USE_LEGACY_KERAS="1")
        self.code, self.output, self.errors = done.returncode, done.stdout, done.stderr
        found = re.findall(r"RESULT (\{.*\})$", self.output, re.MULTILINE)
        self.results = sorted(map(json.loads, found), key=lambda one: one["rank"])
        self.generations = re.findall(r"generation \d+: (ranks? .*)$", self.errors, re.MULTILINE)
        self.started = len(re.findall(r"worker \d+ starts on", self.errors))

    def result(self, ranks=1):
        """What the ranks that came to the end have printed, which is the same but for the rank."""
        assert self.code == 0 and len(self.results) == ranks, self.output + self.errors
        assert [one.pop("rank") for one in self.results] == list(range(ranks))
        assert all(one == self.results[0] for one in self.results)
        assert self.results[0].get("keras", "tf_keras") == "tf_keras"
        return self.results[0]


def trained(steps, momentum=0.5):
    """The weights after steps, each a learning rate and the rows of all ranks together."""
    weights = velocity = np.zeros(3)
    for rate, rows in steps:
        errors = rows @ (weights - 1)
        velocity = momentum * velocity - rate * 2 / len(rows) * rows.T @ errors
        weights = weights + velocity
    return pytest.approx(weights, abs=1e-4)


def on_all(*rates):
    return [(rate, ROWS) for rate in rates]


@pytest.mark.slow
def test_tape_loop_goes_back_to_its_commit_when_a_worker_is_lost(tmp_path):
    """It is lost in the third batch of the second epoch; the second one was not committed."""
    job = Done(tmp_path, "elastic_tape.py", *TWO_HOSTS, *HOROVODS_RULE)
    result = job.result()
    rates = [0.04] * 5 + [0.02] * 4  # by the number of workers; the committed batch comes again
    assert result["rates"] == rates and result["iterations"] == 1 + len(rates)
    assert result["weights"] == trained(on_all(*rates)) and result["size"] == 1
    assert job.generations == [
        f"rank 0 is worker 1 on {HERE}, rank 1 is worker 2 on 127.0.0.1",
        f"rank 0 is worker 1 on {HERE}",
    ]
    assert "worker 2 (rank 1, host 127.0.0.1, slot 0) ended with signal 9" in job.errors


@pytest.mark.slow
def test_fit_goes_on_with_a_host_that_comes_back_after_its_cool_down(tmp_path):
    """Its reset callback trains a batch, and what rank 0 alone does is not done by new workers."""
    cooldown = ("--blacklist-cooldown-range", 0.5, 10)
    job = Done(tmp_path, "elastic_fit.py", *TWO_HOSTS, *cooldown)
    result = job.result(ranks=2)
    # Four batches an epoch with two workers, eight with one; in each reset callback one more.
    alone = [0.01] * (1 + 6 + 8)
    assert result["rates"] == [0.02] * 6 + alone + [0.02] * (1 + 4)
    assert result["epoch"] == 4 and result["iterations"] == 1 + len(result["rates"])
    # The new worker takes no part in the reset callback; the other one trains with its own rows.
    before, after = [0.02] * 7 + alone, [0.02] * 4
    steps = [*on_all(*before), (0.02, ROWS[0::2]), *on_all(*after)]
    assert result["weights"] == trained(steps) and result["size"] == 2
    assert job.output.count("checkpoints:") == 1
    assert job.generations == [
        f"rank 0 is worker 1 on {HERE}, rank 1 is worker 2 on 127.0.0.1",
        f"rank 0 is worker 1 on {HERE}",
        f"rank 0 is worker 1 on {HERE}, rank 1 is worker 3 on 127.0.0.1",
    ]


@pytest.mark.slow
def test_state_of_the_scripts_own_class_after_a_spoiled_batch_and_a_lost_rank_0(tmp_path):
    job = Done(tmp_path, "elastic_objects.py", *TWO_HOSTS, *HOROVODS_RULE)
    result = job.result()
    # Commits after three batches each; the fifth batch is spoiled, the eighth ends worker 0.
    assert result["table"] == [[n, 2 if n < 6 else 1] for n in range(9)]
    assert result["weights"] == trained(on_all(*[0.1] * 9), momentum=0)
    assert result["resets"] == 2 and result["called"] == [2, 1]
    assert (result["batch"], result["said"]) == (9, "trained")
    assert len(job.generations) == 3 and job.generations[-1] == "rank 0 is worker 2 on 127.0.0.1"
    assert "OSError: the disk of worker 0 is full" in job.errors


@pytest.mark.slow
def test_discovery_script_adds_a_host_and_removes_the_first_one(tmp_path):
    script = tmp_path / "discover.sh"
    script.write_text(
        f"#!/bin/sh\n[ -e {tmp_path}/epoch.1 ] || echo localhost\n"
        f"[ -e {tmp_path}/epoch.0 ] && echo 127.0.0.1\nexit 0\n"
    )
    script.chmod(0o755)
    options = ("-np", 1, "--min-np", 1, "--max-np", 2, "--slots", 1)
    job = Done(tmp_path, "elastic_hosts.py", *options, "--host-discovery-script", script)
    result = job.result()
    rates = [0.02] * 3 + [0.04] * 3 + [0.02] * 3
    assert result["rates"] == rates and result["iterations"] == 1 + len(rates)
    assert result["weights"] == trained(on_all(*rates))
    assert result["hosts"] == [HERE, HERE, "127.0.0.1"]  # of rank 0, by epoch
    assert result["meetings"] == 3 and result["host"] == "127.0.0.1"
    assert "ended with" not in job.errors  # the worker of the first host leaves in order


@pytest.mark.slow
def test_reset_limit_ends_the_job(tmp_path):
    limits = ("--reset-limit", 1, "--blacklist-cooldown-range", 100, 100)
    job = Done(tmp_path, "elastic_limit.py", *TWO_HOSTS, *limits)
    assert job.code == 1 and "RESULT" not in job.output, job.output + job.errors
    batches = re.findall(r"BATCH (\d+) (\d)", job.output)
    assert [int(b) for b, _ in batches] == [0, 1, 2, *range(2, 20)]
    assert "".join(size for _, size in batches) == "2" * 3 + "1" * 18
    assert "the job failed: the limit of 1 resets is used up" in job.errors
    assert job.started == 2


@pytest.mark.slow
def test_a_host_on_which_a_worker_fails_is_not_used_again(tmp_path):
    """Nor is its other worker. The script has the order of callbacks of Horovod's documentation."""
    hosts = ("-np", 3, "--min-np", 1, "-H", "localhost:1,127.0.0.1:2")
    job = Done(tmp_path, "elastic_blacklist.py", *hosts, *HOROVODS_RULE)
    result = job.result()
    # A batch that is committed before `state.batch` is counted comes again.
    assert result["sizes"] == [3] * 4 + [1] * 24 and result["iterations"] == 4 + 1 + 24
    assert result["rate"] == pytest.approx(0.01) and result["epoch"] == 3
    assert (result["host"], job.started) == (HERE, 3)
    assert job.generations == [
        f"rank 0 is worker 1 on {HERE}, ranks 1-2 are workers 2,3 on 127.0.0.1",
        f"rank 0 is worker 1 on {HERE}",
    ]
    assert "RuntimeError: worker on 127.0.0.1 fails" in job.errors


SIX = (
    "elastic_tape.py",
    "elastic_fit.py",
    "elastic_objects.py",
    "elastic_hosts.py",
    "elastic_limit.py",
    "elastic_blacklist.py",
)


@pytest.mark.parametrize("victim", [0, slow(1)])
@pytest.mark.parametrize("script", cases(SIX, quick=["elastic_tape.py"]))
def test_a_killed_rank_on_the_only_host_ends_no_script(tmp_path, script, victim):
    """Horovod's rule about hosts is an option of its own: --horovod says what is imported."""
    options = ("-np", 2, "--min-np", 1)
    if script == "elastic_hosts.py":  # it waits for other hosts behind each epoch
        found = tmp_path / "discover.sh"
        found.write_text(
            f"#!/bin/sh\n[ -e {tmp_path}/epoch.1 ] && exec echo localhost:2\n"
            f"[ -e {tmp_path}/epoch.0 ] && exec echo localhost:3\necho localhost:2\n"
        )
        found.chmod(0o755)
        options += ("--host-discovery-script", found)
    job = Done(tmp_path, script, *options, kills=victim)
    assert job.code == 0, job.output + job.errors
    assert (tmp_path / "killed").exists() and "ended with signal 9" in job.errors
    # Worker 1 is rank 0 and worker 2 rank 1. The other one stays.
    members = [re.search(r"workers? ([\d,]+) on", one)[1].split(",") for one in job.generations]
    assert members[0] == ["1", "2"] and str(2 - victim) in members[1]
    assert "RESULT" in job.output
