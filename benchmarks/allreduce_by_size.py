"""Sum-allreduce of one float32 tensor, 4 B to 256 MiB, beside raw Open MPI.

    mpirun -np 2 python -m benchmarks.allreduce_by_size --json out.json

Three times per size, in milliseconds: raw Open MPI through mpi4py; tfring called eagerly; and the
time that the allreduce adds to a tf.function (with it minus without it).
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from benchmarks import common

SIZES = [4, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20]
LIMIT_4B_MS = 0.4


def candidates(size: int) -> dict[str, Callable[[], object]]:
    import tensorflow as tf

    import tfring as hvd
    from benchmarks.peers.mpi import mpi_call
    from tfring.bench.cases import collective_case

    tensor = tf.random.normal([size // 4], seed=hvd.rank())
    calls = collective_case("allreduce", size, "float32").build()
    return {
        "open_mpi": mpi_call({"kind": "allreduce", "bytes": size, "dtype": "float32"}, None),
        "eager": lambda: hvd.allreduce(tensor, op=hvd.Sum, name=f"eager.{size}"),
        "with": calls["call"],
        "without": calls["bare"],
    }


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--max-bytes", type=int, default=SIZES[-1])
    parser.add_argument("--scale", type=float, default=1.0, help="times the number of rounds")
    arguments = parser.parse_args()

    import tfring as hvd
    from tfring.bench.cases import rounds_for

    hvd.init()
    common.one_core()
    comm = common.world_comm()
    report = common.Report("allreduce_by_size", hvd.size())
    for size in (size for size in SIZES if size <= arguments.max_bytes):
        repeats = max(3, int(rounds_for(size) * arguments.scale))
        times = common.side_by_side(comm, candidates(size), repeats)
        added = common.median_difference(times["with"], times["without"])
        raw, eager = common.median(times["open_mpi"]), common.median(times["eager"])
        report.rows.append(
            {
                "bytes": size,
                "open_mpi_ms": raw,
                "tfring_eager_ms": eager,
                "tfring_graph_ms": added,
                "eager_over_mpi": eager / raw,
            }
        )
        if size == 4:
            report.goals.append(common.Goal("4 B in a tf.function, ms added", added, LIMIT_4B_MS))
    code = report.finish(arguments.json) if hvd.rank() == 0 else 0
    hvd.shutdown()
    return code


if __name__ == "__main__":
    sys.exit(main())
