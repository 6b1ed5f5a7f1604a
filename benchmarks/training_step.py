"""One training step of two small models: each rank alone, then with averaged gradients.

    mpirun -np 2 python -m benchmarks.training_step --json out.json

"alone" is one rank computing while the others sleep, "local" all ranks computing at once without
any exchange (the cost of sharing the machine), "tfring" the same with averaged gradients,
"open_mpi" the local step followed by one raw Iallreduce per gradient.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks import common


def alone_ms(comm: Any, step: Callable[[], object], repeats: int) -> float:
    """Median of rank 0's step while the others sleep."""
    times = []
    common.quiet_barrier(comm)
    if comm.Get_rank() == 0:
        for _ in range(repeats):
            started = time.perf_counter()
            step()
            times.append((time.perf_counter() - started) * 1e3)
    common.quiet_barrier(comm)
    return float(comm.bcast(common.median(times) if times else 0.0, root=0))


def measure(comm: Any, kind: str, repeats: int) -> dict[str, Any]:
    from benchmarks.peers.mpi import mpi_call
    from tfring.bench import models

    spec = {"kind": "step", "counts": models.counts(kind), "dtype": "float32"}
    local = models.training_step(kind, distributed=False)
    ways = {
        "local": local,
        "tfring": models.training_step(kind, distributed=True),
        "open_mpi": mpi_call(spec, models.training_step(kind, distributed=False)),
    }
    before = common.side_by_side(comm, ways, repeats)
    alone = alone_ms(comm, local, repeats)
    after = common.side_by_side(comm, ways, repeats)
    medians = {name: common.median(before[name] + after[name]) for name in ways}
    return {
        "model": kind,
        "alone_ms": alone,
        **{f"{name}_ms": value for name, value in medians.items()},
        "efficiency": alone / medians["tfring"],
    }


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--repeats", type=int, default=40)
    arguments = parser.parse_args()

    import tfring as hvd

    hvd.init()
    common.one_core()
    comm = common.world_comm()
    report = common.Report("training_step", hvd.size())
    for kind in ("mlp", "cnn"):
        report.rows.append(measure(comm, kind, arguments.repeats))
    code = report.finish(arguments.json) if hvd.rank() == 0 else 0
    hvd.shutdown()
    return code


if __name__ == "__main__":
    sys.exit(main())
