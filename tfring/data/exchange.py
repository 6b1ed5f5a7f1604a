"""Sends whole numbers between ranks, as many as each has, in one collective."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfring.runtime import _native
from tfring.runtime.exceptions import tf_errors


def allgather_numbers(numbers: Any, name: str) -> list[Any]:
    """Returns the numbers of every rank, in rank order; int64, one array per rank. A collective.

    Args:
        numbers: whole numbers in one dimension.
        name: what the collective is called.

    Raises:
        tf.errors.FailedPreconditionError: tfring is not initialized.
    """
    mine = np.asarray(numbers, dtype=np.int64)
    with tf_errors():
        _native.note_call_site()
        together = _native.core.allgather(np.concatenate([[mine.size], mine]), name=name)
    ranks, begin = [], 0
    while begin < together.size:
        end = begin + 1 + int(together[begin])
        ranks.append(together[begin + 1 : end])
        begin = end
    return ranks
