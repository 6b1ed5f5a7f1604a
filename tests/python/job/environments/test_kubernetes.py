"""The rank of a pod of an indexed Job, from its variables."""

from __future__ import annotations

import pytest

from tfring.job.environments import IdentityError, Rendezvous, find_identity
from tfring.job.environments.kubernetes import DEFAULT_PORT, find_pod

JOB = {
    "JOB_COMPLETION_INDEX": "2",
    "TFRING_PODS": "4",
    "TFRING_RENDEZVOUS_ADDR": "train-0.train",
    "TFRING_RENDEZVOUS_PORT": "4000",
}
TRAINER = {
    "JOB_COMPLETION_INDEX": "2",
    "PET_NODE_RANK": "2",
    "PET_NNODES": "4",
    "PET_NPROC_PER_NODE": "1",
    "PET_MASTER_ADDR": "train-node-0-0.train",
    "PET_MASTER_PORT": "29500",
}


@pytest.mark.parametrize(
    ("environ", "source", "address", "port"),
    [
        (JOB, "an indexed Job of Kubernetes", "train-0.train", 4000),
        (TRAINER, "the Kubeflow Trainer", "train-node-0-0.train", 29500),
    ],
)
def test_a_pod_of_one_rank(environ, source, address, port):
    found = find_identity(environ, have_mpi4py=True)
    assert (found.source, found.rank, found.size) == (source, 2, 4)
    assert (found.local_rank, found.local_size) == (0, 1)
    assert (found.address, found.port) == (address, port)
    assert found.rendezvous is Rendezvous.TCP and found.several_hosts
    assert not found.fixed_port  # a different program may have the port


def test_the_port_has_a_default():
    without = {name: value for name, value in JOB.items() if not name.endswith("PORT")}
    assert find_identity(without).port == DEFAULT_PORT


def test_a_job_of_one_pod_needs_nobody():
    found = find_identity({**JOB, "JOB_COMPLETION_INDEX": "0", "TFRING_PODS": "1"})
    assert (found.rank, found.size, found.rendezvous) == (0, 1, Rendezvous.NONE)


@pytest.mark.parametrize(
    "environ",
    [
        {"JOB_COMPLETION_INDEX": "2"},  # of pods that do not know each other
        {name: value for name, value in TRAINER.items() if name != "JOB_COMPLETION_INDEX"},
    ],
)
def test_other_jobs_are_none_of_ours(environ):
    assert find_pod(environ) is None
    assert find_identity(environ).source == "a single process"


def test_what_started_processes_in_the_pod_comes_first():
    torchrun = {
        "RANK": "5",
        "WORLD_SIZE": "8",
        "MASTER_ADDR": "train-node-0-0.train",
        "MASTER_PORT": "29500",
    }
    assert find_identity({**TRAINER, **torchrun}).rank == 5
    launched = {**JOB, "TFRING_X_RANK": "5", "TFRING_X_SIZE": "8"}
    assert find_identity(launched).rank == 5


def test_pods_that_replace_others_are_the_same_job():
    assert find_identity(JOB).job_id == find_identity({**JOB, "JOB_COMPLETION_INDEX": "0"}).job_id
    assert find_identity(JOB).job_id != find_identity({**JOB, "TFRING_RENDEZVOUS_PORT": "1"}).job_id


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        *[
            ({n: v for n, v in JOB.items() if n != name}, rf"{name}.*missing")
            for name in ("JOB_COMPLETION_INDEX", "TFRING_RENDEZVOUS_ADDR")
        ],
        ({n: v for n, v in TRAINER.items() if n != "PET_NODE_RANK"}, "PET_NODE_RANK.*missing"),
        ({**JOB, "JOB_COMPLETION_INDEX": "4"}, "JOB_COMPLETION_INDEX is 4 and TFRING_PODS is 4"),
        ({**JOB, "TFRING_PODS": "0"}, "TFRING_PODS"),
        ({**JOB, "TFRING_POD_SLOTS": "0"}, "TFRING_POD_SLOTS"),
        ({**JOB, "TFRING_POD_SLOTS": "2"}, "tfring run python train.py"),
        ({**TRAINER, "PET_NPROC_PER_NODE": "auto"}, 'PET_NPROC_PER_NODE is "auto"'),
    ],
)
def test_impossible_values(environ, words):
    with pytest.raises(IdentityError, match=words):
        find_identity(environ, have_mpi4py=True)
