"""The failure table of elastic jobs: each row with faults chosen by a seed, on real processes.

It checks the promises, not the speed: `python -m benchmarks.elastic.failures`
measures. A test here plants a few faults, `make soak` many.
"""

from __future__ import annotations

import pytest
from tiers import cases

pytest.importorskip("tfring.runtime._native")

from benchmarks.elastic import rows
from benchmarks.elastic.faults import RECOVERY_PHASES

# The limit that tells a hang: all rows end long before, also on slow machines.
HANG_SECONDS = 240.0
# The number of faults of a row here.
FEW = {"joins": 2, "flapping": 5}
# Rows that wait for limits of many seconds.
SLOW = {"stopped", "never_enough"}
# Rows that resemble others, or quick tests beside this one: only `make test-all` runs them.
ALIKE = {
    "flapping",
    "same_error",
    "several",
    "joins",
    "below_min",
    "above_max",
    "raises",
    "store_away",
}
ROWS = cases(
    [name for name in rows.ROWS if name not in SLOW], quick=rows.ROWS.keys() - SLOW - ALIKE
)


def check(outcome):
    """Fails with the violated promises."""
    assert outcome.wrong == []
    return outcome


@pytest.mark.slow
def test_a_rank_is_killed_in_each_phase_of_a_step(tmp_path):
    outcome = check(rows.kills(tmp_path, 1, 20, hang_seconds=HANG_SECONDS))
    assert len({fault["phase"] for one in outcome.recoveries for fault in one.faults}) >= 9


@pytest.mark.slow
def test_a_spare_takes_the_place_of_a_killed_rank(tmp_path):
    outcome = check(rows.kills(tmp_path, 2, 10, spares=1, hang_seconds=HANG_SECONDS))
    assert outcome.faults >= 10


@pytest.mark.slow
def test_a_rank_is_killed_in_each_phase_of_a_recovery(tmp_path):
    phases = len(RECOVERY_PHASES)
    check(rows.in_recovery(tmp_path, 3, phases, hang_seconds=HANG_SECONDS))


@pytest.mark.parametrize("name", ROWS)
def test_a_row(tmp_path, name):
    make, _ = rows.ROWS[name]
    check(make(tmp_path, 3, FEW.get(name, 1), hang_seconds=HANG_SECONDS))


@pytest.mark.soak
@pytest.mark.parametrize("name", rows.ROWS)
def test_a_row_for_long(tmp_path, name):
    make, count = rows.ROWS[name]
    check(make(tmp_path, 4, count, hang_seconds=HANG_SECONDS))
