"""What the autotuner finds beside the static settings, on ranks of this host. Needs no MPI.

    python -m benchmarks.autotuning --turns 5

Each job allreduces the same tensors step after step until its search is over. At its end the best
values and the static ones take turns within the job. `best` is the time of a step with the best
values to that with the static ones, the median over the jobs; 1 where no trial was better than the
static values. `kept` says how many jobs kept the best.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks import common, resnet50

SETS: dict[str, list[tuple[int, ...]]] = {
    "resnet50": resnet50.shapes(),
    "500 x 1 KiB": [(256,)] * 500,
}
WAYS = {"arenas": {}, "streams": {"TFRING_X_ARENA": "0"}, "tcp": {"TFRING_X_SHARED_MEMORY": "0"}}
SEARCH = {
    "TFRING_AUTOTUNE": "1",
    "TFRING_AUTOTUNE_WARMUP_SAMPLES": "1",
    "TFRING_AUTOTUNE_STEPS_PER_SAMPLE": "5",
    "TFRING_AUTOTUNE_SAMPLES": "3",
}
TUNED = ("fusion_threshold_bytes", "max_plans_in_flight", "piece_bytes")
STEPS = 300  # more than the search takes at most


def work(name: str) -> None:
    """Is one rank of a job: takes the steps of a search."""
    from tfring import world
    from tfring.runtime._native import core

    world.init()
    tensors = [np.ones(shape, np.float32) for shape in SETS[name]]
    for _ in range(STEPS):
        calls = [
            core.allreduce_async(tensor, name=f"t{i}", op=1) for i, tensor in enumerate(tensors)
        ]
        for call in calls:
            call.wait()
    world.shutdown()


def search(name: str, way: str, ranks: int) -> list[dict[str, str]]:
    """Returns the rows of the log of one job."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.csv"
        settings = {**WAYS[way], **SEARCH, "TFRING_AUTOTUNE_LOG": str(log)}
        command = [sys.executable, "-m", "tfring", "run", "-np", str(ranks)]
        command += [sys.executable, "-m", "benchmarks.autotuning", "--work", name]
        subprocess.run(command, env={**os.environ, **settings}, check=True)
        with open(log, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    if rows[-1]["step"] != "kept":
        raise RuntimeError(f"the search was not over after {STEPS} steps: {rows[-1]}")
    return rows


def row(name: str, way: str, arguments: argparse.Namespace) -> dict[str, object]:
    """Returns the row of one set of tensors that goes one way."""
    best, kept = [], 0
    for _ in range(arguments.turns):
        rows = search(name, way, arguments.ranks)
        rates = [float(one["bytes_per_second"]) for one in rows if one["step"] == "compared"]
        best.append(rates[1] / rates[0] if rates else 1.0)
        kept += any(rows[-1][column] != rows[0][column] for column in TUNED)
    return {
        "tensors": name,
        "way": way,
        "best": statistics.median(best),
        "least": min(best),
        "most": max(best),
        "kept": f"{kept} of {arguments.turns}",
    }


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--way", action="append", choices=WAYS, help="a way; more than one")
    parser.add_argument("--work", choices=SETS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work is not None:
        work(arguments.work)
        return 0
    report = common.Report("autotuning", arguments.ranks)
    for way in arguments.way or WAYS:
        report.rows += [row(name, way, arguments) for name in SETS]
    return report.finish(arguments.json)


if __name__ == "__main__":
    sys.exit(main())
