"""Sum-allreduce of 500 tensors of 1 KiB beside raw Open MPI.

mpirun -np 2 python -m benchmarks.small_tensors --json out.json
"""

from __future__ import annotations

import sys

from benchmarks import common, many_tensors

TENSORS = 500
LIMIT_ADDED_MS = 5.0


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--repeats", type=int, default=30)
    arguments = parser.parse_args()

    import tfring as hvd

    hvd.init()
    common.one_core()
    comm = common.world_comm()
    report = common.Report("small_tensors", hvd.size())
    ways = many_tensors.candidates([(256,)] * TENSORS, "small")
    times = common.side_by_side(comm, ways, arguments.repeats)
    report.rows = many_tensors.rows(times)
    added = report.rows[1]["median_ms"]
    report.goals.append(common.Goal("500 small tensors, ms added", added, LIMIT_ADDED_MS))
    code = report.finish(arguments.json) if hvd.rank() == 0 else 0
    hvd.shutdown()
    return code


if __name__ == "__main__":
    sys.exit(main())
