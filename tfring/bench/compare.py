"""``tfring bench --compare``: how two runs differ, and whether that can be believed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tfring.bench.result import Result, Row
from tfring.bench.samples import median, ratio_interval
from tfring.bench.table import number

SLOWER, FASTER, SAME = "slower", "faster", "within the spread"
# What shows how the machine itself differed between the runs: no communication is in it.
_CONTROLS = ("bare", "copy")
_LABEL = 34


@dataclass(frozen=True)
class Change:
    """How a row of the second run differs from that of the first.

    Attributes:
        name: The row.
        before: Its time in the first run, in milliseconds: net, of training steps whole.
        after: In the second run.
        low: Of an interval of 95 % for the ratio of the two, from the spread within the runs.
        high: Of this interval.
        machine: By which factor the same machine differed between the runs without communication:
            the larger one of those of the bare function and of copying, as a number above 1.
    """

    name: str
    before: float
    after: float
    low: float
    high: float
    machine: float

    @property
    def ratio(self) -> float:
        """The second over the first; nan where the first cannot be told from nothing."""
        return self.after / self.before if self.before > 0 < self.after else math.nan

    @property
    def verdict(self) -> str:
        """SLOWER or FASTER only if neither spread nor the machine can explain it."""
        if math.isnan(self.ratio):
            return SAME
        if self.low > self.machine:
            return SLOWER
        return FASTER if self.high < 1 / self.machine else SAME


def changes(first: Result, second: Result) -> list[Change]:
    """Returns the rows that both runs have.

    Raises:
        ValueError: They cannot be compared.
    """
    if (first.ranks, first.hosts) != (second.ranks, second.hosts):
        raise ValueError(
            f"the runs cannot be compared: one has {first.ranks} ranks on {first.hosts} hosts, "
            f"the other {second.ranks} on {second.hosts}"
        )
    others = {_key(row): row for row in second.rows}
    found = [_change(row, others[_key(row)]) for row in first.rows if _key(row) in others]
    if not found:
        raise ValueError("the runs cannot be compared: they have no row in common")
    return found


def warnings(first: Result, second: Result) -> list[str]:
    """Returns what makes the comparison doubtful."""
    found = []
    for name in ("cpu", "cores", "threads"):
        a, b = first.machine.get(name), second.machine.get(name)
        if a != b:
            found.append(f"the runs were made on different machines: {name} {a} and {b}")
    one, other = ({_key(row) for row in run.rows} for run in (first, second))
    if one != other:
        found.append(f"{len(one ^ other)} rows are in one of the runs only and are left out")
    for name, run in (("first", first), ("second", second)):
        if not run.complete:
            found.append(f"the {name} run was broken off")
    return found


def lines(found: list[Change]) -> list[str]:
    """Returns the table."""
    made = [f"{'':<{_LABEL}}{'before':>9}{'after':>9}{'ratio':>8}  95 % interval  machine  verdict"]
    for one in found:
        ratio = "-" if math.isnan(one.ratio) else f"{one.ratio:.2f}"
        between = "-" if math.isinf(one.high) else f"{one.low:.2f} to {one.high:.2f}"
        made.append(
            f"{one.name:<{_LABEL}}{number(one.before):>9}{number(one.after):>9}{ratio:>8}"
            f"{between:>15}{one.machine:>9.2f}  {one.verdict}"
        )
    return made


def failed(found: list[Change], limit: float) -> list[Change]:
    """Returns the rows that have become slower by more than a factor, beyond doubt.

    Args:
        found: All rows.
        limit: The factor.
    """
    return [one for one in found if one.verdict == SLOWER and one.ratio > limit]


def _key(row: Row) -> tuple[str, str, int]:
    return row.section, row.way, row.bytes


def _change(a: Row, b: Row) -> Change:
    low, high = ratio_interval(_times(a), _times(b))
    return Change(
        name=f"{a.section} {a.label}" if a.way != "step" else a.section,
        before=median(_times(a)),
        after=median(_times(b)),
        low=low,
        high=high,
        machine=_machine(a, b),
    )


def _times(row: Row) -> list[float]:
    """Returns what is compared, by round."""
    whole = row.samples_ms["call"]
    if row.way == "step":
        return whole
    return [a - b for a, b in zip(whole, row.samples_ms["bare"], strict=True)]


def _machine(a: Row, b: Row) -> float:
    factors = [1.0]
    for name in _CONTROLS:
        if name in a.samples_ms and name in b.samples_ms:
            ratio = median(b.samples_ms[name]) / median(a.samples_ms[name])
            factors.append(max(ratio, 1 / ratio))
    return max(factors)
