"""Finds a change point: where a series of times moves to another level for good.

There is no threshold on times. Each place where the series could be cut is tried, and the parts are
compared by rank (Mann-Whitney), so a few very slow steps do not count more than others: A. N.
Pettitt, "A non-parametric approach to the change-point problem", Applied Statistics 28, 1979; D. M.
Hawkins and Q. Deng, "A nonparametric change-point control chart", Journal of Quality Technology 42,
2010.

Neighbouring steps are often alike, which looks like a change. So the statistic is divided by the
growth of its variance that autocorrelation causes (the initial positive sequence of C. J. Geyer,
"Practical Markov chain Monte Carlo", Statistical Science 7, 1992).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

# In standard deviations. A monitor tests hundreds of cuts hundreds of times, and must not be wrong
# once in a hundred runs.
SURE = 5.2
LEAST_BEFORE = 30
LEAST_AFTER = 15
# How many values a monitor looks at: a change is seen soon after it happens.
WINDOW = 300
_COMPARED = 300  # values on each side of a cut, to say how large a change is
_MOST_LAGS = 50


@dataclass(frozen=True)
class Change:
    """One change of level.

    Attributes:
        index: Of the first value on the new level.
        shift: The median of all differences between values after and before (Hodges and Lehmann).
        score: How sure it is, in standard deviations.
    """

    index: int
    shift: float
    score: float


def find_change(values: Array) -> Change | None:
    """Returns the clearest change of level in a series, or None.

    Args:
        values: In order of time.
    """
    count = len(values)
    if count < LEAST_BEFORE + LEAST_AFTER:
        return None
    ranks = _ranks(values)
    cuts = np.arange(LEAST_BEFORE, count - LEAST_AFTER + 1)
    # The ranks of the first `cuts` values add up to this on average, if nothing changes.
    sums = np.cumsum(ranks)[cuts - 1] - cuts * (count + 1) / 2
    spread = float(np.var(ranks)) * cuts * (count - cuts) / (count - 1)
    if not spread.all():
        return None  # all values are equal
    scores = np.abs(sums) / np.sqrt(spread)
    best = int(np.argmax(scores))
    cut = int(cuts[best])
    if scores[best] < SURE:
        return None
    shift = _shift(values[:cut], values[cut:])
    growth = _growth(ranks, cut)
    by_size = abs(shift) / _error(values, cut) if growth > 1 else 0.0
    score = float(max(scores[best], by_size) / np.sqrt(growth))
    return Change(cut, shift, score) if score >= SURE else None


def _error(values: Array, cut: int) -> float:
    """Returns the standard error of a shift, from the median absolute deviation of both parts.

    Once the parts do not overlap, ranks cannot tell a large change from a small one.
    """
    old, new = values[:cut], values[cut:]
    rest = np.concatenate([old - np.median(old), new - np.median(new)])
    spread = 1.4826 * float(np.median(np.abs(rest)))  # as of a normal distribution
    return max(spread * math.sqrt(1 / len(old) + 1 / len(new)), 1e-300)


def _shift(old: Array, new: Array) -> float:
    return float(np.median(np.subtract.outer(new[:_COMPARED], old[-_COMPARED:])))


def _ranks(values: Array) -> Array:
    """Returns the rank of each value, from 1 on; equal values share the mean."""
    order = np.argsort(values)
    ordered = values[order]
    ranks: Array = np.empty(len(values))
    ranks[order] = np.arange(1, len(values) + 1)
    if (ordered[1:] == ordered[:-1]).any():
        below = np.searchsorted(ordered, values, side="left")
        upto = np.searchsorted(ordered, values, side="right")
        ranks = (below + upto + 1) / 2
    return ranks


def _growth(ranks: Array, cut: int) -> float:
    """Returns the factor by which autocorrelation multiplies the variance of a sum; at least 1."""
    rest = ranks - np.where(np.arange(len(ranks)) < cut, ranks[:cut].mean(), ranks[cut:].mean())
    power = float(rest @ rest)
    noise = 1 / np.sqrt(len(rest))
    growth = 1.0
    for lag in range(1, min(_MOST_LAGS, len(rest) // 4)):
        alike = float(rest[:-lag] @ rest[lag:]) / power if power else 0.0
        if alike < noise:
            break
        growth += 2 * alike
    return growth
