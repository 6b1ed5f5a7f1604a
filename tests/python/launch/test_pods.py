"""`tfring run` in a pod of an indexed Job: it starts the ranks of this pod."""

from __future__ import annotations

import pytest

pytest.importorskip("tfring.runtime._native")

from run_options import run_options as options

from tfring.launch.hosts.errors import UsageError
from tfring.launch.hosts.placement import is_local
from tfring.launch.options.environment import job_variables, place_variables
from tfring.launch.options.resolve import job_options, unused_hosts

SECRET = "0123456789abcdef" * 4
POD = {
    "JOB_COMPLETION_INDEX": "1",
    "TFRING_PODS": "3",
    "TFRING_POD_SLOTS": "2",
    "TFRING_RENDEZVOUS_ADDR": "train-0.train",
    "TFRING_RENDEZVOUS_PORT": "29400",
    "TFRING_SECRET": SECRET,
}


@pytest.fixture
def pod(monkeypatch):
    for name, value in POD.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def test_the_ranks_of_a_pod(pod):
    job = job_options(options())
    assert [slot.rank for slot in job.slots] == [2, 3]
    assert job.size == 6 and job.secret == SECRET
    assert all(is_local(slot.host) for slot in job.slots)
    variables = {
        **job_variables(job, {}, remote=False),
        **place_variables(job, job.slots[1]),
    }
    wanted = {
        "TFRING_X_RANK": "3",
        "TFRING_X_SIZE": "6",
        "TFRING_X_LOCAL_RANK": "1",
        "TFRING_X_LOCAL_SIZE": "2",
        "TFRING_X_CROSS_RANK": "1",
        "TFRING_X_CROSS_SIZE": "3",
        "TFRING_SECRET": SECRET,
    }
    assert {name: variables[name] for name in wanted} == wanted
    assert job.share is not None
    assert job.share.variables()["TFRING_RENDEZVOUS_ADDR"] == "train-0.train"


def test_all_pods_have_one_job_id(pod):
    first = job_options(options())
    pod.setenv("JOB_COMPLETION_INDEX", "0")
    assert job_options(options()).job_id == first.job_id
    pod.setenv("TFRING_JOB_ID", "mine")
    assert job_options(options()).job_id == "mine"


def test_a_job_of_one_pod_is_a_job_of_this_host(pod):
    pod.setenv("TFRING_PODS", "1")
    pod.setenv("JOB_COMPLETION_INDEX", "0")
    job = job_options(options())
    assert job.share is None and job.size == 2 and job.secret != SECRET


@pytest.mark.parametrize("words", [("-np", "2"), ("-H", "localhost:2")])
def test_options_win(pod, words):
    job = job_options(options(*words))
    assert job.share is None and [slot.rank for slot in job.slots] == [0, 1]


def test_a_job_of_one_pod_among_several_is_said(pod):
    assert "2 of the 6 in 3 pods" in unused_hosts(options("-np", "2"), POD)
    assert unused_hosts(options(), POD) == ""


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("TFRING_SECRET", None, "number 1.*no secret"),
        ("TFRING_RENDEZVOUS_ADDR", None, "TFRING_RENDEZVOUS_ADDR.*missing"),
        ("JOB_COMPLETION_INDEX", "3", "JOB_COMPLETION_INDEX is 3"),
    ],
)
def test_what_is_missing_is_named(pod, name, value, words):
    pod.delenv(name) if value is None else pod.setenv(name, value)
    with pytest.raises(UsageError, match=words):
        job_options(options())
