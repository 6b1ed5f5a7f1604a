"""Measures the failure table of elastic jobs: the cost of each kind of fault.

Run as ``python -m benchmarks.elastic.failures --kills 500``; ``--rows`` selects other rows or all.
No TensorFlow and no mpirun are needed: each row is a job of 2 to 4 ranks on this machine.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from benchmarks.common import Goal, Report, parser
from benchmarks.elastic import rows
from benchmarks.elastic.checks import Recovery, quantiles
from benchmarks.elastic.worker import Settings

# Limits for a kill in a step, in milliseconds.
ERROR_MS, COMMIT_MS = 250.0, 1000.0
# Short jobs keep logs small and show many first generations.
KILLS_IN_A_JOB = 50
COLUMNS = (
    "row",
    "faults",
    "wrong",
    "error median",
    "error p95",
    "error max",
    "commit median",
    "commit p95",
    "commit max",
)


def kills(count: int, seed: int, spares: int, settings: Settings) -> rows.Outcome:
    """Runs jobs until this many kills were planted; returns them all as one row."""
    found: list[rows.Outcome] = []
    while (planted := sum(one.faults for one in found)) < count:
        with tempfile.TemporaryDirectory() as folder:
            asked = min(KILLS_IN_A_JOB, count - planted)
            outcome = rows.kills(
                Path(folder), seed + len(found), asked, spares=spares, settings=settings
            )
        found.append(outcome)
        print(f"{planted + outcome.faults} kills, {len(outcome.wrong)} wrong", flush=True)
    return rows.Outcome(
        found[0].row,
        sum(one.faults for one in found),
        [text for one in found for text in one.wrong],
        [recovery for one in found for recovery in one.recoveries],
        found[0].more,
    )


def goals(row: str, recoveries: list[Recovery]) -> list[Goal]:
    """Returns the goals of a row of kills."""
    alone = [one for one in recoveries if len(one.faults) == 1]
    errors = quantiles(max(one.errors) for one in alone if one.errors)
    commits = quantiles(one.next_commit for one in alone if one.next_commit is not None)
    return [
        Goal(f"{row}: error at survivors, ms", errors["max"], ERROR_MS),
        Goal(f"{row}: next commit, ms, 95 % of {len(alone)}", commits["p95"], COMMIT_MS),
    ]


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--kills", type=int, default=0, help="SIGKILLs in phases of a step")
    options.add_argument("--spares", type=int, default=0, help="workers that wait, in these jobs")
    options.add_argument("--state-mb", type=float, default=0.1)
    options.add_argument("--mb", type=float, default=0.25, help="summed up in a step")
    options.add_argument("--rows", default="", help="of the rest: all, or " + ",".join(rows.ROWS))
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    names = list(rows.ROWS) if given.rows == "all" else given.rows.split(",") if given.rows else []
    report, outcomes = Report("failure table", 4), []
    if given.kills:
        settings = Settings(mb=given.mb, state_mb=given.state_mb)
        outcomes.append(kills(given.kills, given.seed, given.spares, settings))
        report.goals += goals(outcomes[0].row, outcomes[0].recoveries)
    for name in names:
        row, count = rows.ROWS[name]
        with tempfile.TemporaryDirectory() as folder:
            outcomes.append(row(Path(folder), given.seed, count))
        print(f"{name}: {len(outcomes[-1].wrong)} wrong", flush=True)
    for outcome in outcomes:
        print(*outcome.wrong[:20], sep="\n")
        report.rows.append({**dict.fromkeys(COLUMNS, ""), **outcome.line()})
        report.goals.append(Goal(f"{outcome.row}: broken promises", len(outcome.wrong), 0))
    print(f"load of the machine: {os.getloadavg()[0]:.1f}; times in milliseconds")
    return report.finish(given.json)


if __name__ == "__main__":
    raise SystemExit(main())
