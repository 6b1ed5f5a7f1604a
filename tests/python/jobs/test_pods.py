"""Pods of an indexed Job as processes: they come late, are replaced, and are asked to end.

Each pod has its own network, and finds the others by names that a name server learns of when
the pod is there, as in a cluster. Only the pods' environment determines the ranks.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from cluster_programs import PATIENT, WHO_IS_THERE, said_lines
from cluster_programs import TRAINING as ELASTIC
from fake_cluster import SECRET, cluster
from launcher_tools import LIMIT_SECONDS, start_command, wait_until, write_script

pytest.importorskip("tfring.runtime._native")

from tfring.launch.exit_codes import LOST_PEER

LONG = 300  # the longest time of a step of a test on a busy machine, in seconds

# Each step is an allreduce. At SIGTERM to one rank all publish a checkpoint after the same step.
# The lines of the ranks are in the folder `said`.
TRAINING = """
    import json, os, signal, sys, time
    import numpy as np
    from tfring.runtime import topology
    from tfring import world
    from tfring.runtime._native import core
    from tfring.checkpoint import Checkpointer

    leave = []
    signal.signal(signal.SIGTERM, lambda *_: leave.append(True))
    world.init()
    checkpoints = Checkpointer("checkpoints")
    found = checkpoints.load()
    first = 0 if found is None else int(found.state["step"])
    step = first = int(core.allreduce(np.array([first]), name="first", op=4)[0])

    def say(what, **facts):
        name = f"said/{what}.{topology.rank()}.{os.getpid()}"
        with open(f"{name}.new", "w") as file:
            json.dump({"rank": topology.rank(), "size": topology.size(), **facts}, file)
        os.rename(f"{name}.new", name)

    def publish():
        if topology.rank() == 0:
            checkpoints.save({"step": step}, step=step)
            checkpoints.wait()
        core.barrier(name="published")

    say("began", first=first)
    while not os.path.exists("finish") or step < first + 10:
        if core.allreduce(np.array([len(leave)]), name="leave", op=4)[0]:
            publish()
            say("left", step=step)
            sys.exit(75)
        step += 1
        if step == first + 10:
            publish()
            say("trains")
        time.sleep(0.01)
    say("done", first=first, step=step)
"""


# Elastic: at SIGTERM the ranks of this pod leave, and the others go on.
LEAVING = ELASTIC.replace("leave.append(True)", "process.present().link.leave()")
LEAVING = LEAVING.replace(
    "import tfring as hvd", "import tfring as hvd; from tfring.elastic import process"
)


def variables(pods, **more):
    return {
        "TFRING_PODS": str(pods),
        "TFRING_RENDEZVOUS_ADDR": "train-0.train",
        "TFRING_RENDEZVOUS_PORT": "29400",
        "TFRING_SECRET": SECRET,
        **PATIENT,
        **more,
    }


def ends_of(processes, codes=(0,)):
    """The output of the processes; all have to end with one of the codes."""
    out = []
    for process in processes:
        said, errors = process.communicate(timeout=LIMIT_SECONDS)
        assert process.returncode in codes, errors
        out.append(said)
    return out


def who_is_there(processes):
    lines = "".join(ends_of(processes)).splitlines()
    return sorted(json.loads(line[line.rindex("[") :]) for line in lines)


def said(folder, what):
    files = sorted((folder / "said").glob(f"{what}.*"))
    return [json.loads(path.read_text()) for path in files if path.suffix != ".new"]


@pytest.fixture
def training(tmp_path):
    write_script(tmp_path, TRAINING, name="train.py")
    (tmp_path / "said").mkdir()
    return tmp_path


def test_the_first_pod_comes_last_and_its_name_later(tmp_path):
    write_script(tmp_path, WHO_IS_THERE, name="train.py")
    with cluster(3, tmp_path) as made:
        command = ["python", "train.py"]
        pods = [made.start(index, command, **variables(3)) for index in (1, 2)]
        assert wait_until(lambda: made.asked(0) >= 4, LONG), "nobody looks for rank 0"
        pods.append(made.start(0, command, **variables(3)))  # it cannot find its own name
        before = made.asked(0)
        assert wait_until(lambda: made.asked(0) >= before + 4, LONG)
        made.publish(0)
        assert who_is_there(pods) == [[rank, 3, 0, 1, 6, f"train-{rank}"] for rank in range(3)]


def test_a_pod_that_waits_is_replaced_on_another_machine(tmp_path):
    write_script(tmp_path, WHO_IS_THERE, name="train.py")
    with cluster(4, tmp_path) as made:
        command = ["python", "train.py"]
        made.publish(0)
        first = made.start(0, command, **variables(3))
        lost = made.start(1, command, **variables(3))
        assert wait_until(lambda: made.asked(0) >= 3, LONG)  # both have; each asks for A and AAAA
        made.lose(1)
        lost.communicate()
        again = made.start(1, command, machine=3, **variables(3))
        pods = [first, again, made.start(2, command, **variables(3))]
        assert who_is_there(pods) == [[rank, 3, 0, 1, 6, f"train-{rank}"] for rank in range(3)]


@pytest.mark.slow
def test_a_pod_is_lost_and_new_pods_go_on(training):
    """All pods end, and their replacements go on from the checkpoint."""
    with cluster(4, training) as made:
        command, job = ["tfring", "run", "python", "train.py"], variables(2, TFRING_POD_SLOTS="1")
        made.publish(0)
        pods = [made.start(index, command, **job) for index in range(2)]
        assert wait_until(lambda: len(said(training, "trains")) == 2, LONG)
        made.lose(1)
        pods[1].communicate()
        out, errors = pods[0].communicate(timeout=LIMIT_SECONDS)
        assert pods[0].returncode == LOST_PEER, out
        assert "rank 1" in errors
        made.publish(0, machine=2)
        (training / "finish").touch()
        ends_of([made.start(index, command, machine=index + 2, **job) for index in range(2)])
        done = [(one["rank"], one["first"], one["step"]) for one in said(training, "done")]
        # From 10 or later: a rank whose tfring run is killed is asked to end, and publishes.
        first = done[0][1]
        assert first >= 10 and done == [(0, first, first + 10), (1, first, first + 10)]


def test_an_elastic_pod_is_taken_away_and_another_comes(tmp_path):
    write_script(tmp_path, LEAVING, name="train.py")
    options = ["--nnodes", "1:2", "--nproc-per-node", "1", "--rdzv-endpoint", "train-0.train"]
    start = ["tfring", "run", "--start-timeout", "300", *options]
    command = [*start, "python", "train.py", str(tmp_path)]
    job = {"TFRING_SECRET": SECRET, "TFRING_STOPPED_EXIT_CODE": "75"}
    with cluster(3, tmp_path) as made:

        def trains(size, host):
            """Waits for one more step of a job of that size on that pod."""
            before = len(said_lines(tmp_path))

            def found():
                lines = said_lines(tmp_path)[before:]
                return any(one["size"] == size and one["host"] == host for one in lines)

            assert wait_until(found, LONG)

        made.publish(0)
        first, second = made.start(0, command, **job), made.start(1, command, **job)
        trains(2, "train-1")
        second.send_signal(signal.SIGTERM)
        ends_of([second], codes=(75,))
        trains(1, "train-0")
        again = made.start(1, command, machine=2, **job)
        trains(2, "train-1")
        (tmp_path / "stop").touch()
        ends_of([first, again])


def test_process_1_of_a_container_ends_at_sigterm(tmp_path):
    """The kernel does not deliver a signal to process 1 without a handler."""
    if os.geteuid() != 0:
        pytest.skip("making namespaces needs root")
    script = write_script(tmp_path, "open('up', 'w').close(); import time; time.sleep(600)")
    command = [sys.executable, "-m", "tfring", "run", "-np", "1", sys.executable, script]
    unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    job = start_command([*unshare, "env", f"--chdir={tmp_path}", *command])
    try:
        assert wait_until(lambda: (tmp_path / "up").exists(), LONG)
        [first] = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
        os.kill(int(first), signal.SIGTERM)
        _, errors = job.communicate(timeout=LIMIT_SECONDS)
        assert "stopped by SIGTERM" in errors
    finally:
        job.kill()
        job.communicate()
