"""Training throughput of a job while its ranks are killed, compared with an undisturbed one.

Run as ``python -m benchmarks.elastic.throughput``; no TensorFlow and no mpirun are needed. A step
sleeps 40 ms, sums up 4 MB over 8 ranks and commits; the global batch stays the same however many
ranks there are. One spare waits. The job runs undisturbed, then with a SIGKILL every 29 s at a
moment chosen by a seed, every fourth of rank 0, then undisturbed again. It counts the samples
of distinct committed steps.
"""

from __future__ import annotations

import itertools
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import Goal, Report, parser
from benchmarks.elastic.checks import distinct_steps, quantiles, recoveries, violations
from benchmarks.elastic.faults import KILL
from benchmarks.elastic.job import Job
from benchmarks.elastic.worker import Settings

RANKS, SPARES = 8, 1
KILL_EACH = 29.0
STEP_SECONDS = 0.040
LEAST = 0.97


def run(folder: Path, clean: float, faulty: float, seed: int) -> tuple[Job, list[float], int]:
    """Runs the job.

    Args:
        folder: For logs.
        clean: Seconds without faults, before and after.
        faulty: Seconds with them.
        seed: Selects moments and victims.

    Returns:
        The job, the times between the three parts, and the number of killed ranks.
    """
    rng = random.Random(seed)
    settings = Settings(batch=8 * RANKS, row_seconds=STEP_SECONDS / 8, samples=1 << 14, mb=4.0)
    options = {"np": RANKS, "min_np": 1, "max_np": RANKS, "spares": SPARES}
    with Job(folder, RANKS + SPARES, settings, **options) as job:
        job.wait_for_size(RANKS, steps=20, after=0)
        job.wait_for_spares(SPARES)
        times = [time.monotonic()]
        _pass_time(job, times[0] + clean)
        times.append(time.monotonic())
        kills = 0
        while (begin := times[1] + kills * KILL_EACH) + KILL_EACH <= times[1] + faulty + 1:
            _pass_time(job, begin + rng.uniform(0.0, KILL_EACH * 0.6))
            members = job.members()
            victim = members[0] if kills % 4 == 3 else rng.choice(members)
            job.planted(victim, KILL)
            job.signal(victim)
            kills += 1
        _pass_time(job, times[1] + faulty)
        times.append(time.monotonic())
        _pass_time(job, times[2] + clean)
        times.append(time.monotonic())
        job.faults.stop = True
        job.wait_for_end()
    return job, times, kills


def _pass_time(job: Job, until: float) -> None:
    """Sleeps, so that this process takes no time from the workers."""
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, 1.0))
    job.read()


def speeds(job: Job, times: list[float]) -> list[float]:
    """Returns the distinct committed samples per second in each part."""
    steps = distinct_steps(job.in_order()).values()
    found = []
    for begin, end in itertools.pairwise(times):
        samples = [s["all"][1] - s["all"][0] for s in steps if begin <= s["t"] / 1e9 < end]
        found.append(sum(samples) / (end - begin))
    return found


def loss_rows(job: Job) -> list[dict[str, Any]]:
    """Returns how long each part of a recovery takes, in milliseconds."""
    parts: dict[str, list[float]] = {}
    found = recoveries(job.in_order())
    for recovery in found:
        for part, seconds in recovery.parts.items():
            parts.setdefault(part, []).append(seconds)
        if recovery.next_commit is not None:
            parts.setdefault("fault to next commit", []).append(recovery.next_commit)
    rows: list[dict[str, Any]] = [
        {"part": part, "count": len(values), **quantiles(values)} for part, values in parts.items()
    ]
    return rows


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, default=480.0, help="with faults")
    options.add_argument("--clean", type=float, default=60.0, help="seconds without, twice")
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    report = Report("elastic throughput under faults", RANKS)
    with tempfile.TemporaryDirectory() as folder:
        job, times, kills = run(Path(folder), given.clean, given.seconds, given.seed)
        events = job.in_order()
        wrong = violations(events, job.settings, job.evicted())
        before, faulty, after = speeds(job, times)
        clean = statistics.fmean([before, after])
        report.rows = loss_rows(job)
        print(
            f"samples per second: {before:.1f} before, {faulty:.1f} with {kills} kills, "
            f"{after:.1f} after: {100 * faulty / clean:.2f} %"
        )
        print(*wrong, *job.left_over(), sep="\n")
    report.goals = [
        Goal("clean samples/s over those under faults", clean / faulty, 1 / LEAST),
        Goal("broken promises", len(wrong), 0),
    ]
    return report.finish(given.json)


if __name__ == "__main__":
    raise SystemExit(main())
