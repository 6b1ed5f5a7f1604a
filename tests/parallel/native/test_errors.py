"""The binding: mistakes that TensorFlow's ops cannot make, and those about process sets.

All others are in collectives/test_errors.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from native_cases import (
    INVALID_ARGUMENT,
    SUM,
    expect_error,
)

from tfring.runtime._native import core

pytestmark = pytest.mark.any_ranks

X = np.ones((12, 2), np.float32)

REDUCING: dict[str, Callable[..., Any]] = {
    "allreduce": lambda x, **k: core.allreduce(x, op=SUM, **k),
    "reduce": lambda x, **k: core.reduce(x, op=SUM, root=0, **k),
}


@pytest.mark.parametrize("kind", REDUCING)
def test_what_cannot_be_reduced(kind: str, rank: int, several: int) -> None:
    """One rank's wrong dtype or factor is an error on every rank, with that rank's reason."""
    for odd in range(several):
        name = f"bad.{kind}.{odd}"
        flags = partial(REDUCING[kind], X.astype(bool) if rank == odd else X, name=name)
        expect_error(INVALID_ARGUMENT, flags, name, f"rank {odd}", "bool")
        scaled = partial(REDUCING[kind], X, name=name, prescale=np.inf if rank == odd else 1.0)
        expect_error(INVALID_ARGUMENT, scaled, name, f"rank {odd}", "prescale")
        REDUCING[kind](X, name=name)  # the next call of this name


def test_a_removed_set_ends_what_waits_in_it(rank: int, several: int) -> None:
    number = core.add_process_set([0, 1] if several > 2 else [1])
    waiting = None
    if several > 2 and rank == 1:
        waiting = core.allreduce_async(X, name="lonely", op=SUM, process_set=number)
    core.remove_process_set(number)
    if waiting is not None:
        with pytest.raises(core.CoreError, match="lonely"):
            waiting.wait()
    expect_error(
        INVALID_ARGUMENT,
        lambda: core.barrier(name="late", process_set=number),
        f"process set {number}",
    )
