"""How often the background threads of a rank wake in ten idle seconds after init.

    mpirun -np 2 python -m benchmarks.idle_cost --json out.json

Counted twice: by the runtime's own counters, and by the kernel as voluntary context switches of the
threads that init started.
"""

from __future__ import annotations

import os
import sys
import time

from benchmarks import common

LIMIT_WAKEUPS = 100


def switches() -> dict[str, int]:
    """Voluntary context switches by thread id of this process."""
    found = {}
    for thread in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{thread}/status", encoding="utf-8") as file:
            for line in file:
                if line.startswith("voluntary_ctxt_switches"):
                    found[thread] = int(line.split()[1])
    return found


def counted_wakeups() -> int:
    from tfring.runtime._native import core

    return sum(count for name, count in core.counters().items() if name.endswith("_wakeups"))


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    arguments = parser.parse_args()

    # Open MPI starts its own threads; it is imported first so that they do not count.
    from mpi4py import MPI

    import tfring as hvd

    others = set(switches())
    hvd.init()
    ours = set(switches()) - others
    time.sleep(1.0)
    before, counted = switches(), counted_wakeups()
    time.sleep(arguments.seconds)
    after, counted = switches(), counted_wakeups() - counted
    by_kernel = sum(after[thread] - before[thread] for thread in ours if thread in after)

    rows = MPI.COMM_WORLD.gather(
        {
            "rank": hvd.rank(),
            "threads": len(ours),
            "counted_wakeups": counted,
            "context_switches": by_kernel,
        }
    )
    code = 0
    if rows is not None:
        report = common.Report("idle_cost", hvd.size(), rows=rows)
        worst = max(max(row["counted_wakeups"], row["context_switches"]) for row in rows)
        per_ten = worst * 10.0 / arguments.seconds
        report.goals.append(common.Goal("wake-ups of a rank in 10 s", per_ten, LIMIT_WAKEUPS))
        code = report.finish(arguments.json)
    hvd.shutdown()
    return code


if __name__ == "__main__":
    sys.exit(main())
