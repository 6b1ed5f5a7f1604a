"""Rank and size from the arguments of init: URLs as torch.distributed has them, and stores."""

from __future__ import annotations

import pytest

from tfring.job.environments import Given, IdentityError, Rendezvous

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "h", "MASTER_PORT": "29500"}


def test_nothing_given():
    assert Given(None, False, None, None).identity(TORCHRUN) is None


@pytest.mark.parametrize(
    ("url", "rank", "size"),
    [
        ("tcp://10.1.1.20:23456", 1, 3),
        ("tcp://10.1.1.20:23456?rank=1&size=3", None, None),
        ("tcp://10.1.1.20:23456?rank=1&world_size=3", None, 3),
        ("tcp://10.1.1.20:23456?rank=1", 1, 3),
    ],
)
def test_tcp(url, rank, size):
    found = Given(url, False, rank, size).identity({})
    assert (found.rank, found.size, found.rendezvous) == (1, 3, Rendezvous.TCP)
    assert (found.address, found.port) == ("10.1.1.20", 23456)
    other = Given("tcp://10.1.1.20:23456", False, 0, 3).identity({})
    assert (found.job_id, found.public_seed) == (other.job_id, other.public_seed)


def test_env():
    found = Given("env://", False, None, None).identity(TORCHRUN)
    assert (found.rank, found.size, found.address, found.port) == (1, 4, "h", 29500)
    found = Given("env://", False, 2, 3).identity(TORCHRUN)
    assert (found.rank, found.size) == (2, 3)
    with pytest.raises(ValueError, match="needs the variables RANK"):
        Given("env://", False, None, None).identity({})
    with pytest.raises(IdentityError, match="MASTER_PORT is missing"):
        Given("env://", False, 0, 2).identity({"MASTER_ADDR": "h"})


def test_file_and_store():
    found = Given("file:///shared/job", False, 0, 2).identity({})
    assert (found.rendezvous, found.address) == (Rendezvous.STORE, "/shared/job")
    found = Given(None, True, 1, 2).identity(TORCHRUN)
    assert (found.rank, found.size, found.rendezvous) == (1, 2, Rendezvous.STORE)
    assert Given(None, True, 0, 1).identity({}).rendezvous is Rendezvous.NONE


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Given("tcp://h:1", True, 0, 2), "only one of them"),
        (Given(None, True, 0, 2, comm=True), "only one of them"),
        (Given(None, False, 0, 2), "and not how"),
        (Given(None, True, None, 2), "rank is None"),
        (Given(None, True, 2, 2), "rank 2 of 2"),
        (Given("tcp://h:1?rank=0&size=2", False, 1, 2), "rank is 1 as an argument and 0"),
        (Given("tcp://h:1?rank=x&size=2", False, None, None), "rank is None.* and x in the URL"),
        (Given("tcp://h:1?rnak=0", False, 0, 2), "rnak is neither"),
        (Given("tcp://h", False, 0, 2), "is none of env://"),
        (Given("tcp://h:99999", False, 0, 2), "is none of env://"),
        (Given("file://relative", False, 0, 2), "is none of env://"),
        (Given("mpi://", False, 0, 2), "is none of env://"),
    ],
)
def test_what_makes_no_sense(given, words):
    with pytest.raises(ValueError, match=words):
        given.identity({})
