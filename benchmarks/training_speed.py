"""Training speed of one process before and after init: interleaved A/B pairs.

    python -m benchmarks.training_speed --json out.json

Each pair times the same training steps once without the runtime and once with it initialized, in
random order. The result is the mean of the paired differences with its 95 % confidence interval.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
import time
from collections.abc import Callable

from benchmarks import common

# Student's t for 95 %, two-sided, by degrees of freedom; above 30 the normal value is close.
T95 = {5: 2.571, 9: 2.262, 14: 2.145, 19: 2.093, 24: 2.064, 29: 2.045}
LIMIT_SLOWDOWN = 0.02


def timed(step: Callable[[], object], steps: int) -> float:
    started = time.perf_counter()
    for _ in range(steps):
        step()
    return time.perf_counter() - started


def run_pair(step: Callable[[], object], steps: int, order: list[bool]) -> tuple[float, float]:
    """Seconds without and with the runtime."""
    import tfring as hvd

    times = {}
    for initialized in order:
        if initialized:
            hvd.init()
        step()
        times[initialized] = timed(step, steps)
        if initialized:
            hvd.shutdown()
    return times[False], times[True]


def interval(changes: list[float]) -> tuple[float, float]:
    """Mean and half-width of the 95 % confidence interval."""
    freedom = len(changes) - 1
    t = next((T95[key] for key in sorted(T95) if key >= freedom), 1.96)
    return statistics.mean(changes), t * statistics.stdev(changes) / math.sqrt(len(changes))


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=150)
    arguments = parser.parse_args()

    from tfring.bench import models

    step = models.training_step("mlp", distributed=False)
    timed(step, arguments.steps)
    randomness = random.Random(7)
    changes = []
    for _ in range(arguments.pairs):
        order = randomness.sample([False, True], 2)
        without, with_runtime = run_pair(step, arguments.steps, order)
        changes.append(with_runtime / without - 1.0)
    mean, half = interval(changes)
    report = common.Report("training_speed", 1)
    report.rows.append(
        {
            "pairs": arguments.pairs,
            "slowdown": mean,
            "ci95_low": mean - half,
            "ci95_high": mean + half,
        }
    )
    # No significant slowdown, and a mean of at most 2 %.
    report.goals.append(common.Goal("slowdown after init, lower bound", mean - half, 0.0))
    report.goals.append(common.Goal("slowdown after init, mean", mean, LIMIT_SLOWDOWN))
    return report.finish(arguments.json)


if __name__ == "__main__":
    sys.exit(main())
