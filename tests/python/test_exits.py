"""What a rank keeps from a call of sys.exit."""

from __future__ import annotations

import argparse
import sys

import pytest

from tfring.runtime.signals import exits


@pytest.fixture(autouse=True)
def _watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "exit", sys.exit)  # which is put back
    monkeypatch.setattr(exits._State, "said", "")
    exits.watch()


def test_the_line_of_the_program_that_ends_it_is_kept() -> None:
    for status in (None, 0):
        with pytest.raises(SystemExit):
            sys.exit(status)
        assert exits.said() == ""
    with pytest.raises(SystemExit) as ended:
        sys.exit(3)
    line = sys._getframe().f_lineno - 1
    assert ended.value.code == 3
    where = "(test_the_line_of_the_program_that_ends_it_is_kept)"
    assert exits.said() == f"sys.exit(3) in test_exits.py:{line} {where}"


def test_a_library_that_ends_the_program_was_called_by_it() -> None:
    with pytest.raises(SystemExit):
        argparse.ArgumentParser().parse_args(["--unknown"])
    assert exits.said().startswith("sys.exit(2) in test_exits.py:")


def test_an_exit_of_somebody_else_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = exits.said
    monkeypatch.setattr(sys, "exit", mine)
    exits.watch()
    assert sys.exit is mine  # type: ignore[comparison-overlap]
