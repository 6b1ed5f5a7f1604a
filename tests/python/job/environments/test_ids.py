"""Job ids from users and environments."""

from __future__ import annotations

import pytest

from tfring.job.bootstrap.records import Record, job_name
from tfring.job.environments.identity import plain_id
from tfring.launch.elastic.options import NodeOptions


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ("17a404593f97aaac", "17a404593f97aaac"),
        ("4711.0", "4711.0"),
        ("../../x y", "x-y"),
        ("none/0/29500", "none-0-29500"),
        ("x" * 99, "x" * 40),
        ("///", ""),
    ],
)
def test_an_id_is_the_name_of_a_file(given: str, plain: str) -> None:
    assert plain_id(given) == plain


def test_generations_of_a_job_have_its_id_and_numbers_of_their_own() -> None:
    def name(job: str, nonce: str) -> str:
        return job_name(Record(0, "h", "h", 1, "", None, None, 64, nonce, [], {}, job_id=job))

    first, second = name("mine", "a"), name("mine", "b")
    assert first.rpartition("-")[0] == second.rpartition("-")[0] == "mine"
    assert first != second
    assert name("", "a") == first.rpartition("-")[2]


def test_the_launchers_of_a_job_have_one_id() -> None:
    first = NodeOptions("head", 29500, "train.py in /job", slots=4).job_id
    assert NodeOptions("head", 29500, "train.py in /job", slots=8, apart=True).job_id == first
    assert NodeOptions("head", 29500, "other.py in /job", slots=4).job_id != first
    assert NodeOptions("head", 29501, "train.py in /job", slots=4).job_id != first
