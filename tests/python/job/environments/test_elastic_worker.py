"""The variables that the launcher of an elastic job sets for a worker."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tfring.job.environments import elastic
from tfring.job.environments.elastic import ElasticWorker, detect, take_worker
from tfring.job.environments.identity import IdentityError

VARIABLES = {
    "TFRING_X_ELASTIC_WORKER": "7",
    "TFRING_X_ELASTIC_STORE": "localhost:4000",
    "TFRING_X_ELASTIC_HOST": "a",
    "TFRING_X_ELASTIC_SLOT": "2",
}


@pytest.fixture(autouse=True)
def nothing_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elastic._Taken, "pid", 0)
    monkeypatch.setattr(elastic._Taken, "worker", None)


def test_variables() -> None:
    assert detect({}) is None
    assert detect(VARIABLES) == ElasticWorker(7, "localhost", 4000, "a", 2, False)
    first = detect({**VARIABLES, "TFRING_X_ELASTIC_FIRST": "1"})
    assert first is not None and first.first
    six = detect({**VARIABLES, "TFRING_X_ELASTIC_STORE": "[fe80::1]:80"})
    assert six is not None and (six.store_host, six.store_port) == ("fe80::1", 80)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"TFRING_X_ELASTIC_STORE": "localhost"}, "host:port"),
        ({"TFRING_X_ELASTIC_STORE": ":80"}, "host:port"),
        ({"TFRING_X_ELASTIC_WORKER": "0"}, "whole number from 1"),
        ({"TFRING_X_ELASTIC_SLOT": "-1"}, "whole number from 0"),
        ({"TFRING_X_ELASTIC_HOST": ""}, "TFRING_X_ELASTIC_HOST is missing"),
    ],
)
def test_impossible_variables(change: dict[str, str], text: str) -> None:
    with pytest.raises(IdentityError, match=text):
        detect({**VARIABLES, **change})


def test_the_id_is_taken_out_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    environ: Any = dict(VARIABLES)
    found = take_worker(environ)
    assert found is not None and found.worker == 7
    assert detect(environ) is None  # as a process that this one starts finds it
    assert take_worker(environ) == found
    monkeypatch.setattr(elastic._Taken, "pid", os.getpid() + 1)  # as in a forked child
    assert take_worker(environ) is None
