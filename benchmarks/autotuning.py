"""Static settings beside those that the autotuner finds, on ranks of this host. Needs no MPI.

    python -m benchmarks.autotuning --turns 5

Each job allreduces the same tensors step after step. In a turn there is one job with autotuning off
and one with it on, which measures when the search is over; `after` is the time of a step of the
second to that of the first, `kept` how often the search ended with other values than it began with.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks import common, resnet50

SETS: dict[str, list[tuple[int, ...]]] = {
    "resnet50": resnet50.shapes(),
    "500 x 1 KiB": [(256,)] * 500,
}
WAYS = {"arenas": {}, "streams": {"TFRING_ARENA": "0"}, "tcp": {"TFRING_SHARED_MEMORY": "0"}}
SEARCH = {
    "TFRING_AUTOTUNE": "1",
    "TFRING_AUTOTUNE_WARMUP_SAMPLES": "1",
    "TFRING_AUTOTUNE_STEPS_PER_SAMPLE": "5",
    "TFRING_AUTOTUNE_SAMPLES": "3",
}
STEPS_OF_SEARCH = 300  # more than it takes at most
WARMUP = 20  # steps without a search


def work(name: str, before: int, steps: int) -> None:
    """Is one rank: takes steps, then measures others; rank 0 prints the median in ms."""
    from tfring import topology, world
    from tfring._native import core

    world.init()
    tensors = [np.ones(shape, np.float32) for shape in SETS[name]]

    def step() -> float:
        start = time.perf_counter()
        calls = [
            core.allreduce_async(tensor, name=f"t{i}", op=1) for i, tensor in enumerate(tensors)
        ]
        for call in calls:
            call.wait()
        return (time.perf_counter() - start) * 1e3

    for _ in range(before):
        step()
    times = [step() for _ in range(steps)]
    if topology.rank() == 0:
        print(json.dumps(statistics.median(times)), flush=True)
    world.shutdown()


def milliseconds(name: str, settings: dict[str, str], arguments: argparse.Namespace) -> float:
    """Returns the median time of a step of a job with these settings."""
    command = [sys.executable, "-m", "tfring", "run", "-np", str(arguments.ranks)]
    command += [sys.executable, "-m", "benchmarks.autotuning"]
    before = STEPS_OF_SEARCH if settings.get("TFRING_AUTOTUNE") else WARMUP
    command += ["--work", name, "--before", str(before), "--steps", str(arguments.steps)]
    done = subprocess.run(
        command, env={**os.environ, **settings}, stdout=subprocess.PIPE, text=True, check=True
    )
    return float(done.stdout.rpartition(":")[2])


def changed(log: Path) -> bool:
    """Returns whether the search has kept other values than those of its first trial."""
    with open(log, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if rows[-1]["step"] != "kept":
        raise RuntimeError(f"the search was not over after {STEPS_OF_SEARCH} steps: {rows[-1]}")
    tuned = ("fusion_threshold_bytes", "max_plans_in_flight", "piece_bytes")
    return any(rows[-1][column] != rows[0][column] for column in tuned)


def row(name: str, way: str, arguments: argparse.Namespace) -> dict[str, object]:
    """Returns the row of one set of tensors that goes one way."""
    static, ratios, kept = [], [], 0
    for turn in range(arguments.turns):
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "log.csv"
            search = {**SEARCH, "TFRING_AUTOTUNE_LOG": str(log)}
            both = [{}, search] if turn % 2 == 0 else [search, {}]
            times = [milliseconds(name, {**WAYS[way], **more}, arguments) for more in both]
            before, after = times if turn % 2 == 0 else times[::-1]
            kept += changed(log)
        static.append(before)
        ratios.append(after / before)
    return {
        "tensors": name,
        "way": way,
        "static_ms": statistics.median(static),
        "after": statistics.median(ratios),
        "least": min(ratios),
        "most": max(ratios),
        "kept": f"{kept} of {arguments.turns}",
    }


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=50, help="that are measured")
    parser.add_argument("--way", action="append", choices=WAYS, help="a way; more than one")
    parser.add_argument("--work", choices=SETS, help=argparse.SUPPRESS)
    parser.add_argument("--before", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work is not None:
        work(arguments.work, arguments.before, arguments.steps)
        return 0
    report = common.Report("autotuning", arguments.ranks)
    for way in arguments.way or WAYS:
        report.rows += [row(name, way, arguments) for name in SETS]
    return report.finish(arguments.json)


if __name__ == "__main__":
    sys.exit(main())
