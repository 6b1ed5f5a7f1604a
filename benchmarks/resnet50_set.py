"""Sum-allreduce of ResNet-50's 161 gradients (102 MB) beside raw Open MPI.

mpirun -np 2 python -m benchmarks.resnet50_set --json out.json
"""

from __future__ import annotations

import sys

from benchmarks import common, many_tensors, resnet50

LIMIT_OVER_MPI = 1.5


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--repeats", type=int, default=12)
    arguments = parser.parse_args()

    import tfring as hvd

    hvd.init()
    common.one_core()
    comm = common.world_comm()
    report = common.Report("resnet50_set", hvd.size())
    ways = many_tensors.candidates(resnet50.shapes(), "resnet50")
    times = common.side_by_side(comm, ways, arguments.repeats)
    report.rows = many_tensors.rows(times)
    ratio = report.rows[1]["over_open_mpi"]
    report.goals.append(common.Goal("ResNet-50 set, times raw Open MPI", ratio, LIMIT_OVER_MPI))
    code = report.finish(arguments.json) if hvd.rank() == 0 else 0
    hvd.shutdown()
    return code


if __name__ == "__main__":
    sys.exit(main())
