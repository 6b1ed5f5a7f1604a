"""The identity of a process from its environment variables."""

from __future__ import annotations

import importlib.util
import json
import sys

import pytest

from tfring.job.environments import Identity, IdentityError, Rendezvous, find_identity
from tfring.job.environments.slurm import first_node

LAUNCHED = {
    "TFRING_X_RANK": "1",
    "TFRING_X_SIZE": "4",
    "TFRING_RENDEZVOUS_ADDR": "127.0.0.1",
    "TFRING_RENDEZVOUS_PORT": "4000",
    "TFRING_SECRET": "s" * 32,
    "TFRING_X_LOCAL_RANK": "1",
    "TFRING_X_LOCAL_SIZE": "2",
}
TORCHRUN = {
    "RANK": "2",
    "WORLD_SIZE": "3",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_RANK": "3",
    "PMIX_NAMESPACE": "prterun-vm-1@1",
}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
PMIX = {"PMIX_RANK": "1", "PMIX_NAMESPACE": "ns"}
SLURM = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NODELIST": "gpu[03-06],cpu1",
}
TF_CONFIG = {
    "TF_CONFIG": json.dumps(
        {
            "cluster": {"chief": ["h0:1000"], "worker": ["h1:1001", "h2:1002"]},
            "task": {"type": "worker", "index": 1},
        }
    )
}

WHOLE = [
    # variables, source, rank, size, rendezvous, local rank, local size, address, port
    (LAUNCHED, "tfring run", 1, 4, Rendezvous.TCP, 1, 2, "127.0.0.1", 4000),
    (TORCHRUN, "torchrun", 2, 3, Rendezvous.TCP, 0, 1, "node0", 29500),
    (OPEN_MPI, "Open MPI", 3, 8, Rendezvous.MPI, 1, 2, None, None),
    (MPICH, "MPICH", 1, 2, Rendezvous.MPI, 1, 2, None, None),
    (PMIX, "PMIx", 1, None, Rendezvous.MPI, None, None, None, None),
    (TF_CONFIG, "TF_CONFIG", 2, 3, Rendezvous.TCP, None, None, "h0", 1000),
]
NOT_LAUNCHED = [
    {},
    {"PATH": "/bin", "MASTER_ADDR": "x"},
    {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"},
]


@pytest.mark.parametrize("environ,source,rank,size,rendezvous,local,locals_,address,port", WHOLE)
def test_whole_sets(environ, source, rank, size, rendezvous, local, locals_, address, port):
    identity = find_identity(environ, have_mpi4py=True)
    assert (identity.source, identity.rank, identity.size) == (source, rank, size)
    assert identity.rendezvous is rendezvous
    assert (identity.local_rank, identity.local_size) == (local, locals_)
    assert (identity.address, identity.port) == (address, port)


@pytest.mark.parametrize("environ", NOT_LAUNCHED)
def test_single_process(environ):
    expected = Identity("a single process", rank=0, size=1, rendezvous=Rendezvous.NONE)
    assert find_identity(environ, have_mpi4py=True) == expected


def test_slurm_step_uses_its_first_node_and_a_port_of_its_own():
    identity = find_identity(SLURM, have_mpi4py=False)
    assert (identity.source, identity.rank, identity.size) == ("a Slurm step", 5, 8)
    assert identity.address == "gpu03" and identity.port is None and identity.by_slurm
    other = find_identity({**SLURM, "SLURM_STEP_ID": "1"}, have_mpi4py=False)
    assert other.job_id != identity.job_id


@pytest.mark.parametrize(
    "nodes,first",
    [
        ("n1", "n1"),
        ("n1,n2", "n1"),
        ("n[01-04]", "n01"),
        ("n[7,9-11]-ib,m1", "n7-ib"),
        ("rack[2-3]node[05-06]", "rack2node05"),
    ],
)
def test_first_slurm_node(nodes, first):
    assert first_node(nodes) == first


def tf_config(*workers):
    cluster = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": 0}}
    return {"TF_CONFIG": json.dumps(cluster)}


SEVERAL_HOSTS = [
    # variables, whether the job has ranks on several hosts (None: not said)
    ({**TORCHRUN, "LOCAL_WORLD_SIZE": "3"}, False),
    ({**TORCHRUN, "LOCAL_WORLD_SIZE": "2"}, True),
    ({k: v for k, v in TORCHRUN.items() if k != "LOCAL_WORLD_SIZE"}, None),
    (tf_config("h0:1", "h0:2"), False),
    (tf_config("h0:1", "h1:1"), True),
    (tf_config("[fd00::1]:1", "[fd00::1]:2"), False),
    (tf_config("[fd00::1]:1", "[fd00::2]:1"), True),
    (TF_CONFIG, True),
    ({**SLURM, "SLURM_STEP_NUM_NODES": "1"}, False),
    ({**SLURM, "SLURM_STEP_NUM_NODES": "2"}, True),
    (SLURM, None),
]


@pytest.mark.parametrize("environ,several", SEVERAL_HOSTS)
def test_whether_the_job_has_several_hosts(environ, several):
    """A job on one host needs no secret; see test_meeting.py for the others."""
    assert find_identity(environ, have_mpi4py=True).several_hosts is several


ORDER = [
    ({**LAUNCHED, **TORCHRUN, **OPEN_MPI}, "tfring run"),
    ({**TORCHRUN, **OPEN_MPI, **SLURM}, "torchrun"),
    ({**OPEN_MPI, **MPICH, **SLURM}, "Open MPI"),
    ({**MPICH, **SLURM}, "MPICH"),
    ({**PMIX, **SLURM}, "PMIx"),
    ({**SLURM, **TF_CONFIG}, "a Slurm step"),
]


@pytest.mark.parametrize("environ,source", ORDER)
def test_order(environ, source):
    assert find_identity(environ, have_mpi4py=True).source == source


HALF = [
    *[(LAUNCHED, n) for n in ("TFRING_X_RANK", "TFRING_RENDEZVOUS_PORT")],
    *[(TORCHRUN, n) for n in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")],
    *[(OPEN_MPI, n) for n in ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")],
    *[(MPICH, n) for n in ("PMI_RANK", "PMI_SIZE")],
    (PMIX, "PMIX_NAMESPACE"),
    *[(SLURM, n) for n in ("SLURM_PROCID", "SLURM_STEP_ID", "SLURM_JOB_ID")],
]


@pytest.mark.parametrize("whole,missing", HALF)
def test_incomplete_variables_name_what_is_missing(whole, missing):
    half = {k: v for k, v in whole.items() if k != missing}
    with pytest.raises(IdentityError, match=rf"{missing}.*missing"):
        find_identity(half, have_mpi4py=True)


IMPOSSIBLE = [
    ({**TORCHRUN, "RANK": "3"}, "rank 3 of 3"),
    ({**TORCHRUN, "RANK": "x"}, 'RANK is "x"'),
    ({**TORCHRUN, "WORLD_SIZE": "0"}, "WORLD_SIZE"),
    ({**LAUNCHED, "TFRING_X_SIZE": "1"}, "rank 1 of 1"),
    ({"TF_CONFIG": "{"}, "not JSON"),
    ({"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}}'}, "no task"),
    (
        {"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}, "task": {"type": "ps", "index": 0}}'},
        "parameter server",
    ),
    (
        {"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}'},
        "names 1 workers",
    ),
    ({**SLURM, "SLURM_PROCID": "0", "SLURM_NODEID": "2"}, "TFRING_RENDEZVOUS_ADDR"),
]


@pytest.mark.parametrize("environ,words", IMPOSSIBLE)
def test_impossible_values(environ, words):
    with pytest.raises(IdentityError, match=words):
        find_identity(environ, have_mpi4py=True)


def test_mpirun_without_mpi4py_says_what_to_install():
    with pytest.raises(IdentityError, match="pip install mpi4py"):
        find_identity(OPEN_MPI, have_mpi4py=False)


def test_srun_announces_pmi_to_programs_without_mpi_too():
    assert find_identity({**MPICH, **SLURM}, have_mpi4py=False).source == "a Slurm step"


def test_mpi_that_does_not_load_under_slurm():
    """An MPI identity falls back to the Slurm step, if its rank is the same."""
    step = {**SLURM, "PMI_RANK": SLURM["SLURM_PROCID"], "PMI_SIZE": SLURM["SLURM_STEP_NUM_TASKS"]}
    found = find_identity(step, have_mpi4py=True)
    assert found.rendezvous is Rendezvous.MPI and found.fallback is not None
    assert found.fallback.rendezvous is Rendezvous.TCP and found.fallback.rank == found.rank
    # The step of a daemon that mpirun started on this node.
    assert find_identity({**step, "PMI_RANK": "0"}, have_mpi4py=True).fallback is None


def test_torchrun_agent_keeps_its_port_and_restarts_are_new_jobs():
    elastic = {
        **TORCHRUN,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RUN_ID": "r",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    first = find_identity(elastic)
    assert first.port is None  # the ranks meet at a port that the job's key gives
    assert find_identity({**elastic, "MASTER_PORT": "29501"}).job_id != first.job_id
    again = find_identity({**elastic, "TORCHELASTIC_RESTART_COUNT": "1"})
    assert first.job_id != again.job_id and first.public_seed != again.public_seed


@pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="needs mpi4py")
def test_finding_the_identity_loads_no_mpi(monkeypatch):
    monkeypatch.delitem(sys.modules, "mpi4py", raising=False)
    assert find_identity(OPEN_MPI).source == "Open MPI"
    assert "mpi4py" not in sys.modules
