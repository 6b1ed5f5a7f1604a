"""Marks the cases of a parametrised test that only `make test-all` runs: `slow`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow(*values: Any) -> Any:
    """One case that `make test` leaves out."""
    return pytest.param(*values, marks=pytest.mark.slow)


def cases(values: Iterable[Any], *, quick: Iterable[Any]) -> list[Any]:
    """The cases of one parameter; `make test` runs the quick ones.

    Raises:
        ValueError: a quick one is not among the cases.
    """
    values, wanted = list(values), list(quick)
    missing = [value for value in wanted if value not in values]
    if missing:
        raise ValueError(f"no case is called {missing}")
    return [value if value in wanted else slow(value) for value in values]
