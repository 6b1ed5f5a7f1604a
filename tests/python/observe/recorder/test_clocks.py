"""The clocks of two hosts, from the records alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from made_records import write_record

from tfring.observe.recorder.clocks import find_clock
from tfring.observe.recorder.reader import Record, read_record

MICROSECOND = 1_000
SECOND = 1_000_000_000
START = 1_000 * SECOND


def two_hosts(
    folder: Path,
    offset: float,
    drift: float,
    delay: int,
    seconds: float,
    seed: int,
    calls: int = 2000,
) -> tuple[Record, Record]:
    """Records of calls of two ranks whose clocks are apart by offset + drift * time.

    Messages take `delay` nanoseconds at least, and up to ten times that, each way for itself. The
    ranks submit a call at times of their own.
    """
    rng = np.random.default_rng(seed)
    true = START + np.sort(rng.integers(0, round(seconds * SECOND), calls))
    submitted = true + rng.integers(0, 20_000 * MICROSECOND, calls)

    def travel() -> np.ndarray:
        return delay + np.minimum(rng.exponential(delay, calls), 9 * delay).astype(np.int64)

    asked = np.maximum(true, submitted + travel())  # the last of the two to ask
    planned = asked + rng.integers(1, 20 * MICROSECOND, calls) + travel()

    def other(time: np.ndarray) -> np.ndarray:
        """The other's clock at a time of rank 0's."""
        return np.round(time - offset - drift * (time - START)).astype(np.int64)

    numbers = range(1, calls + 1)
    first = [
        {"number": n, "sequence": n, "submitted": t, "last_asked": a, "planned": a + 1}
        for n, t, a in zip(numbers, true, asked, strict=True)
    ]
    second = [
        {"number": n, "sequence": n, "submitted": s, "planned": p}
        for n, s, p in zip(numbers, other(submitted), other(planned), strict=True)
    ]
    wall = 1_800_000_000 * SECOND
    return (
        read_record(write_record(folder / "0", 0, 2, first, boot="a", started_wall=wall)),
        read_record(write_record(folder / "1", 1, 2, second, boot="b", started_wall=wall)),
    )


@pytest.mark.parametrize(("drift", "seed"), [(0.0, 0), (40e-6, 1), (-150e-6, 2)])
def test_the_error_bound_holds_and_is_small(tmp_path: Path, drift: float, seed: int) -> None:
    offset = float(np.random.default_rng(seed).integers(-900 * SECOND, 900 * SECOND))
    first, other = two_hosts(tmp_path, offset, drift, 30 * MICROSECOND, 60, seed)
    clock = find_clock(first, other)
    assert clock.error is not None and clock.error < 100 * MICROSECOND
    for true in np.linspace(START, START + 60 * SECOND, 50).astype(np.int64):
        theirs = round(true - offset - drift * (true - START))
        assert abs(clock.common(theirs) - true) <= clock.error + 1


def test_of_a_short_job_no_drift_is_found(tmp_path: Path) -> None:
    first, other = two_hosts(tmp_path, 5 * SECOND, 0.0, 20 * MICROSECOND, 0.5, 1, calls=50)
    clock = find_clock(first, other)
    assert clock.drift == 0.0
    assert clock.error is not None
    assert abs(clock.common(START - 5 * SECOND) - START) <= clock.error


def test_ranks_of_one_host_have_one_clock(tmp_path: Path) -> None:
    first = read_record(write_record(tmp_path / "0", 0, 2))
    other = read_record(write_record(tmp_path / "1", 1, 2))
    clock = find_clock(first, other)
    assert clock.error == 0.0 and clock.common(12345) == 12345


def test_without_common_calls_the_wall_clock_has_to_do(tmp_path: Path) -> None:
    first = read_record(write_record(tmp_path / "0", 0, 2, boot="a", started_wall=900))
    times = {"boot": "b", "started_wall": 1000, "started_monotonic": 30}
    other = read_record(write_record(tmp_path / "1", 1, 2, **times))
    clock = find_clock(first, other)
    assert clock.error is None
    assert clock.common(40) == 110  # ten after 1000 on the wall, which is 110 on the first's
    assert clock.common(0) == 0
