"""Shared by the tests of the binding: dtypes, values, process sets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from matrix import MOVABLE, dtype_of

from tfring.runtime._native import core

Array = np.ndarray[Any, Any]

AVERAGE, SUM, MIN, MAX = 0, 1, 3, 4
INVALID_ARGUMENT = 3
LIMIT = 120.0

ALL_DTYPES = MOVABLE


def values(dtype: str, owner: int, shape: tuple[int, ...]) -> Array:
    """The input of rank `owner`: small whole numbers, which every dtype here adds up exactly."""
    rng = np.random.default_rng(owner)
    return rng.integers(1, 4, size=shape).astype(dtype_of(dtype))


def reduced(arrays: list[Array], op: int) -> Array:
    """Returns numpy's reduction of the arrays, in float64."""
    wide = np.stack([array.astype(np.float64) for array in arrays])
    how: dict[int, Callable[..., Any]] = {
        AVERAGE: wide.mean,
        SUM: wide.sum,
        MIN: wide.min,
        MAX: wide.max,
    }
    return np.asarray(how[op](axis=0))


def share(rows: int, members: int, position: int) -> slice:
    """Returns the rows that a reducescatter gives to the member at `position`."""
    first = rows % members
    begin = position * (rows // members) + min(position, first)
    return slice(begin, begin + rows // members + (position < first))


def expect_error(code: int, call: Callable[[], Any], *parts: str) -> None:
    """Checks that the call fails with this code and a message that contains all parts."""
    with pytest.raises(core.CoreError) as caught:
        call()
    assert caught.value.code == code, caught.value.message
    for part in parts:
        assert part in caught.value.message
