"""The record of this process itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_records import write_record

from tfring.observe.recorder.own import open_own, own_path, set_own


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Path]:
    path = write_record(tmp_path / "r", calls=[{"number": n} for n in (9000, 8999, 9001)])
    set_own(str(path))
    yield path
    set_own(None)


def test_new_calls_come_in_order_also_when_the_file_is_gone(own: Path) -> None:
    calls = open_own()
    assert calls is not None and own_path() == own
    own.unlink()
    assert calls.newer_than(0)["number"].tolist() == [8999, 9000, 9001]
    assert calls.newer_than(8999)["number"].tolist() == [9000, 9001]
    assert open_own() is None


def test_a_rank_without_a_record_and_a_forked_child_have_none(own: Path) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0 if own_path() is None and open_own() is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    set_own(None)
    assert own_path() is None and open_own() is None
