"""Numbers out of measured times: medians of pairs, and how sure they are.

Everything counts rounds: calls that follow each other within a round depend on each other.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]

_DRAWN = 2000
_LEAST = 3  # rounds; of fewer an interval would say nothing
_SEED = 7


def median(values: Sequence[float]) -> float:
    """Returns the median."""
    return statistics.median(values)


def median_difference(a: Sequence[float], b: Sequence[float]) -> float:
    """Returns the median of the paired differences a - b."""
    return statistics.median(x - y for x, y in zip(a, b, strict=True))


def p95(values: Sequence[float]) -> float:
    """Returns what 95 % of the values do not exceed."""
    return float(np.quantile(np.asarray(values), 0.95))


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Returns an interval that holds the median of such values with a probability of 95 %.

    Args:
        values: One for each round, in order.
    """
    if len(values) < _LEAST:
        return -math.inf, math.inf
    low, high = np.quantile(_drawn_medians(values), (0.025, 0.975))
    return float(low), float(high)


def ratio_interval(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    """Returns an interval of 95 % for the ratio of the medians of two runs, b / a.

    Args:
        a: One value for each round of the first run, in order.
        b: Those of the second.

    Returns:
        The interval; from 0 to infinity where one of the medians may be 0 or below.
    """
    if min(len(a), len(b)) < _LEAST:
        return 0.0, math.inf
    first, second = _drawn_medians(a), _drawn_medians(b, _SEED + 1)
    if first.min() <= 0 or second.min() <= 0:
        return 0.0, math.inf
    low, high = np.quantile(second / first, (0.025, 0.975))
    return float(low), float(high)


def _drawn_medians(values: Sequence[float], seed: int = _SEED) -> Array:
    """Returns medians of values that were drawn again, in blocks of neighbours.

    The circular block bootstrap (Politis and Romano 1992): the speed of a shared machine changes
    slowly, so that neighbouring rounds are alike.
    """
    given = np.asarray(values, dtype=float)
    count = len(given)
    block = max(1, round(count ** (1 / 3)))
    begins = np.random.default_rng(seed).integers(0, count, (_DRAWN, math.ceil(count / block)))
    places = (begins[:, :, None] + np.arange(block)) % count
    return np.asarray(np.median(given[places.reshape(_DRAWN, -1)[:, :count]], axis=1))
