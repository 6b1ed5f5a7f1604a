"""The cost of the check for NaN and Inf in inputs: TFRING_CHECK_VALUES=warn compared with 0.

    mpirun -np 2 python -m benchmarks.value_check --json out.json

Every round starts the runtime twice, with and without the check, in turns. Per size, of all rounds:
the median time of an allreduce without it, by how much the time and the processor time with it are
larger (medians of the rounds' ratios), and an interval that holds the median of the times' ratios
with a probability of 95 %.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks import common, resnet50

SIZES = [4 << 10, 256 << 10, 1 << 20, 16 << 20, 64 << 20]
LIMIT = 1.01


def recycle_memory() -> None:
    """Makes malloc keep large blocks: as in TensorFlow, outputs reuse memory."""
    libc = ctypes.CDLL(None)
    for parameter, value in ((-3, 1 << 30), (-1, (1 << 31) - 1)):  # M_MMAP_, M_TRIM_THRESHOLD
        libc.mallopt(parameter, value)


def processor_time() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def time_calls(comm: Any, name: str, arrays: Sequence[Any], calls: int) -> tuple[float, float]:
    """Returns medians of the time and the processor time of this rank, in milliseconds."""
    from tfring.ops.reduce_ops import Sum
    from tfring.runtime._native import core

    spent = []
    for call in range(-2, calls):
        comm.Barrier()
        started, used = time.perf_counter(), processor_time()
        handles = [
            core.allreduce_async(array, name=f"{name}.{i}", op=Sum)
            for i, array in enumerate(arrays)
        ]
        for handle in handles:
            handle.wait()
        if call >= 0:
            spent.append((time.perf_counter() - started, processor_time() - used))
    wall, processor = zip(*spent, strict=True)
    return 1e3 * common.median(wall), 1e3 * common.median(processor)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Returns a 95 % interval for the median, from the order of the values alone.

    By the sign test: the number of n values below the median is binomial (Conover, "Practical
    Nonparametric Statistics").
    """
    ordered = sorted(values)
    skipped = max(0, int((len(ordered) - 1.96 * len(ordered) ** 0.5) / 2) - 1)
    return ordered[skipped], ordered[-1 - skipped]


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--calls", type=int, default=7, help="per round, size and setting")
    arguments = parser.parse_args()

    import tfring as hvd

    recycle_memory()
    sets: dict[str, list[Any]] = {}
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    comm, rank, size = None, 0, 1
    for number in range(arguments.rounds):
        for setting in ("0", "warn") if number % 2 else ("warn", "0"):
            os.environ["TFRING_CHECK_VALUES"] = setting
            hvd.init()
            rank, size = hvd.rank(), hvd.size()
            comm = comm or common.world_comm()
            if not sets:
                random = np.random.default_rng(rank)
                for each in SIZES:
                    sets[str(each)] = [random.standard_normal(each // 4, np.float32)]
                sets["resnet50"] = [
                    random.standard_normal(shape, np.float32) for shape in resnet50.shapes()
                ]
            for name, arrays in sets.items():
                spent = time_calls(comm, name, arrays, arguments.calls)
                found.setdefault(name, {"0": [], "warn": []})[setting].append(spent)
            hvd.shutdown()
    report = common.Report("value_check", size)
    for name, times in found.items():
        pairs = list(zip(times["warn"], times["0"], strict=True))
        ratios = [on[0] / off[0] for on, off in pairs]
        low, high = interval(ratios)
        report.rows.append(
            {
                "what": name,
                "without_ms": common.median([off[0] for _, off in pairs]),
                "time_ratio": common.median(ratios),
                "from": low,
                "to": high,
                "processor_ratio": common.median([on[1] / off[1] for on, off in pairs]),
            }
        )
        if name in (str(16 << 20), str(64 << 20), "resnet50"):
            report.goals.append(common.Goal(f"{name} with the check", common.median(ratios), LIMIT))
    return report.finish(arguments.json) if rank == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
