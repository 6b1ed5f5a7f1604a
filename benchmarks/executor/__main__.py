"""Float32 allreduce by the executor alone, without TensorFlow, compared with raw MPI.

    python -m benchmarks.executor --ranks 2 --program now=build/benchmarks/executor/... --mpi

The programs and raw MPI take turns, one process per turn, so that a change of the machine's speed
affects all alike. A row gives the median time in microseconds of the slowest rank, in brackets its
ratio to a copy on all ranks, measured between the allreduces of one process, and the 99th
percentile.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from benchmarks import common

SIZES = [8, 256, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20]
SIZES += [64 << 20, 256 << 20]
RAW_MPI = str(Path(__file__).with_name("raw_mpi.py"))
DEFAULT = "tfring=build/benchmarks/executor/tfring_executor_benchmark"


def rounds_for(size: int) -> int:
    """Returns the number of rounds of a process."""
    return 300 if size <= 64 << 10 else 60 if size <= 4 << 20 else 9


def commands(arguments: argparse.Namespace, size: int) -> dict[str, list[str]]:
    """Returns the commands that take turns, by name."""
    ranks, rounds = str(arguments.ranks), str(rounds_for(size))
    found = {}
    for program in arguments.program or [DEFAULT]:
        name, _, path = program.partition("=")
        found[name] = [*path.split(), ranks, str(size), rounds]
    enough = arguments.ranks <= len(os.sched_getaffinity(0))
    if arguments.mpi:
        binding = ["--bind-to", "core"] if enough else ["--oversubscribe", "--bind-to", "none"]
        mpirun = ["mpirun", *binding, "-np", ranks, sys.executable]
        found["mpi"] = [*mpirun, RAW_MPI, str(size), rounds]
    if arguments.mpich:
        launcher = f"{arguments.mpich}/bin/mpiexec"
        bound = ["-bind-to", "core"] if enough else []
        mpiexec = [launcher, *bound, "-n", ranks, sys.executable]
        found["mpich"] = [*mpiexec, RAW_MPI, str(size), rounds]
    return found


def times_of(command: list[str]) -> list[tuple[int, int]]:
    """Returns the output of a process: pairs of nanoseconds."""
    more = {"OMPI_MCA_mpi_yield_when_idle": "1"} if "--oversubscribe" in command else {}
    if command[0].endswith("mpiexec"):
        libraries = Path(command[0]).parent.with_name("lib")
        search = f"{libraries}{os.pathsep}{os.environ.get('LD_LIBRARY_PATH', '')}"
        more = {"LD_LIBRARY_PATH": search, "MPI4PY_MPIABI": "mpich"}
    if os.geteuid() == 0:
        more |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = subprocess.run(
        command, env={**os.environ, **more}, stdout=subprocess.PIPE, text=True, check=True
    )
    pairs = [line.split() for line in done.stdout.splitlines()]
    return [(int(reduced), int(copied)) for reduced, copied in pairs]


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--program", action="append", help="NAME=PATH; more than one is compared")
    parser.add_argument("--mpi", action="store_true", help="raw Open MPI as well, through mpi4py")
    parser.add_argument("--mpich", metavar="PREFIX", help="raw MPICH as well, of this folder")
    parser.add_argument("--turns", type=int, default=5, help="processes of each")
    parser.add_argument("--bytes", type=int, action="append", help="a size; more than one")
    arguments = parser.parse_args()
    report = common.Report("executor", arguments.ranks)
    for size in arguments.bytes or SIZES:
        reduced: dict[str, list[int]] = defaultdict(list)
        copied: dict[str, list[int]] = defaultdict(list)
        for _ in range(arguments.turns):
            for name, command in commands(arguments, size).items():
                for one, other in times_of(command):
                    reduced[name].append(one)
                    copied[name].append(other)
        copy = statistics.median(time for times in copied.values() for time in times)
        row: dict[str, object] = {"bytes": size, "copy_us": copy / 1e3}
        for name, times in reduced.items():
            median = statistics.median(times)
            row[f"{name}_us"] = f"{median / 1e3:.1f} ({median / max(copy, 1):.2f})"
            row[f"{name}_p99_us"] = f"{np.quantile(times, 0.99) / 1e3:.1f}"
        report.rows.append(row)
        print(*row.values(), sep="  ", flush=True)
    return report.finish(arguments.json)


if __name__ == "__main__":
    sys.exit(main())
