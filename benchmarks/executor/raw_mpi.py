"""One rank of a raw MPI allreduce: ``mpirun -np N python raw_mpi.py BYTES ROUNDS``.

Rank 0 prints a line "allreduce_ns copy_ns" for each round, as tfring_executor_benchmark does: each
the time from the last begin of a rank to the last end.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from mpi4py import MPI

WARMUP = 5


def main() -> None:
    size, rounds = (int(argument) for argument in sys.argv[1:])
    comm = MPI.COMM_WORLD
    sent = np.full(size // 4, comm.rank + 1, np.float32)
    received = np.empty_like(sent)
    # By round and call: begin and end, on the clock that the ranks of a host share.
    stamps = np.zeros((rounds + WARMUP, 2, 2), np.int64)
    for stamp in stamps:
        for what, call in enumerate(
            (lambda: comm.Allreduce(sent, received), lambda: np.copyto(received, sent))
        ):
            comm.Barrier()
            stamp[what, 0] = time.perf_counter_ns()
            call()
            stamp[what, 1] = time.perf_counter_ns()
    comm.Allreduce(MPI.IN_PLACE, stamps, op=MPI.MAX)
    times = stamps[:, :, 1] - stamps[:, :, 0]
    if comm.rank == 0:
        for reduced, copied in times[WARMUP:]:
            print(reduced, copied)


if __name__ == "__main__":
    main()
