"""One clock for the records of all ranks.

Ranks of one host share the monotonic clock. Between hosts each call bounds the offset, because
nothing arrives before it was sent: a request leaves rank r at `submitted` (r's clock) and is at
rank 0 before `last_asked` (rank 0's clock); the plan leaves rank 0 after that and arrives at
`planned` (r's clock). So each call is an upper and a lower bound of a line, offset plus drift times
time: see L. Zhang, Z. Liu, C. Xia, "Clock synchronization algorithms for network measurements",
INFOCOM 2002.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tfring.observe.recorder.reader import Record

# Clocks of computers drift less than this.
_MAX_DRIFT = 500e-6
# Over a shorter time drift cannot be told from delays.
_MIN_SPAN = 1_000_000_000


@dataclass(frozen=True)
class Clock:
    """Converts the times of a rank to rank 0's clock.

    Attributes:
        offset: Nanoseconds to add at the time `at`.
        drift: Nanoseconds to add for each nanosecond since `at`.
        at: A time on the rank's own clock.
        error: The largest error of the offset, in nanoseconds; None: unknown.
    """

    offset: float = 0.0
    drift: float = 0.0
    at: int = 0
    error: float | None = 0.0

    def common(self, time: int) -> int:
        """Returns a time of the rank on rank 0's clock; 0, which means "not yet", stays 0."""
        if time == 0:
            return 0
        return round(time + self.offset + self.drift * (time - self.at))


def find_clock(first: Record, other: Record) -> Clock:
    """Returns the clock of a rank relative to rank 0.

    Args:
        first: The record of rank 0.
        other: The record of any rank of the same job.
    """
    if first.header["boot"] == other.header["boot"] and first.header["boot"]:
        return Clock()
    bounds = _bounds(first, other)
    if len(bounds) == 0:
        wall = _wall_offset(first) - _wall_offset(other)
        return Clock(offset=-wall, error=None)
    times, lower, upper = bounds.T
    at = int(times.mean())
    drift = _drift(times - at, lower, upper)
    low = float(np.max(lower - drift * (times - at)))
    high = float(np.min(upper - drift * (times - at)))
    return Clock((low + high) / 2, drift, at, max(0.0, (high - low) / 2))


def _bounds(first: Record, other: Record) -> np.ndarray[Any, Any]:
    """Returns rows of: a time on the other's clock, the least offset then, the largest."""
    # In a lock ranks do not wait for an answer: there is no such bound.
    answered = (c for c in first.calls if c.last_asked and c.planned > c.last_asked)
    asked = {c.sequence: c.last_asked for c in answered if c.sequence}
    rows = [
        # The request was there at `last_asked` at the latest, the plan left then at the earliest.
        (call.planned, asked[call.sequence] - call.planned, asked[call.sequence] - call.submitted)
        for call in other.calls
        if call.sequence in asked and call.planned
    ]
    return np.array(rows, dtype=np.float64).reshape(-1, 3)


def _drift(times: np.ndarray[Any, Any], lower: Any, upper: Any) -> float:
    """Returns the drift that leaves most room between the lower and the upper bounds."""
    if float(np.ptp(times)) < _MIN_SPAN:
        return 0.0
    low, high = -_MAX_DRIFT, _MAX_DRIFT
    for _ in range(60):  # the width is a concave function of the drift
        third = (high - low) / 3
        if _width(times, lower, upper, low + third) < _width(times, lower, upper, high - third):
            low += third
        else:
            high -= third
    return (low + high) / 2


def _width(times: np.ndarray[Any, Any], lower: Any, upper: Any, drift: float) -> float:
    return float(np.min(upper - drift * times) - np.max(lower - drift * times))


def _wall_offset(record: Record) -> float:
    return float(record.header["started_wall"] - record.header["started_monotonic"])
