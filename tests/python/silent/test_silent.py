"""N ranks give what one process gives, or the first epoch says what differs and what to write.

The programs are in tests/helpers/silent. A wrong one has to be right after all, or to be told what
is wrong, in words that the table has; a right one runs without any word of tfring's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from silent import programs  # noqa: F401
from silent.ranks import Ranks
from silent.table import PROGRAMS, Program
from silent.verdicts import verdict


def _cases(is_right: bool) -> list[object]:
    """The programs of one kind, as parameters."""
    cases = []
    for program in PROGRAMS.values():
        if program.is_right != is_right:
            continue
        marks = [] if program.quick else [pytest.mark.slow]
        cases.append(pytest.param(program, id=f"{program.theme}-{program.name}", marks=marks))
    return cases


@pytest.fixture(scope="module")
def forks() -> Iterator[Ranks]:
    """The process that forks all ranks."""
    process = Ranks()
    yield process
    process.close()


@pytest.mark.parametrize("program", _cases(False))
def test_wrong(program: Program, forks: Ranks, tmp_path: Path) -> None:
    found, about = verdict(program, 2, forks, tmp_path)
    assert found in ("right", "said"), about


@pytest.mark.parametrize("program", _cases(True))
def test_right(program: Program, forks: Ranks, tmp_path: Path) -> None:
    found, about = verdict(program, 2, forks, tmp_path)
    assert found == "right", about
