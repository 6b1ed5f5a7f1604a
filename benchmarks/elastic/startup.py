"""Measures how long a job of many ranks takes to start, and each part of the start.

Run as ``python -m benchmarks.elastic.startup --ranks 64``: `tfring run` starts ranks that import
tfring (not TensorFlow), find each other, connect, sum up one number and end.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import Goal, Report, parser
from benchmarks.elastic.job import own_environment

LIMIT_SECONDS = 20.0
# The program of each rank. It wraps the functions of the bootstrap, so that tfring needs
# no code for this.
PROGRAM = """
import functools, json, sys, time
marks = {"process": time.monotonic()}
import numpy as np
import tfring as hvd
from tfring import world
from tfring.runtime._native import core
from tfring.job.bootstrap import connect

def watch(module, name, mark):
    inner = getattr(module, name)
    @functools.wraps(inner)
    def outer(*arguments, **more):
        result = inner(*arguments, **more)
        marks[mark] = time.monotonic()
        return result
    setattr(module, name, outer)

watch(connect, "exchange_records", "rendezvous")
watch(world, "connect_job", "mesh")
marks["imports"] = time.monotonic()
hvd.init()
marks["init"] = time.monotonic()
assert core.allreduce(np.ones(1), name="first", op=1)[0] == hvd.size()
marks["first collective"] = time.monotonic()
with open(f"{sys.argv[1]}/{hvd.rank()}.json", "w") as file:
    json.dump(marks, file)
"""
PHASES = {
    "process": "the launcher, its agent, and a Python process for each rank",
    "imports": "numpy, tfring and its compiled libraries",
    "rendezvous": "all ranks have found each other",
    "mesh": "connections between ranks, authenticated",
    "init": "the runtime",
    "first collective": "one number summed up",
    "end": "shutdown of all ranks and of the launcher",
}


def run(ranks: int) -> tuple[float, list[dict[str, float]]]:
    """Runs a job; returns its begin and end, and the marks of each rank, in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program.py")
        program.write_text(PROGRAM)
        launcher = [sys.executable, "-m", "tfring", "run", "-np", str(ranks)]
        begin = time.monotonic()
        subprocess.run(
            [*launcher, sys.executable, str(program), folder],
            check=True,
            env=own_environment(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1"),
        )
        end = time.monotonic()
        files = [json.loads(path.read_text()) for path in Path(folder).glob("*.json")]
    assert len(files) == ranks
    marks = [{name: at - begin for name, at in one.items()} for one in files]
    return end - begin, marks


def table(wall: float, marks: list[dict[str, float]]) -> list[dict[str, Any]]:
    """Returns a row for each phase: when ranks finished it, and its share of the total."""
    rows, before = [], 0.0
    for phase in PHASES:
        times = [one[phase] for one in marks] if phase != "end" else [wall]
        last = max(times)
        rows.append(
            {
                "phase": phase,
                "first rank s": min(times),
                "last rank s": last,
                "share %": 100 * (last - before) / wall,
            }
        )
        before = last
    return rows


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--ranks", type=int, default=64)
    options.add_argument("--repeats", type=int, default=1, help="the fastest counts")
    given = options.parse_args()
    run(2)  # Python keeps its compiled modules
    wall, marks = min((run(given.ranks) for _ in range(given.repeats)), key=lambda one: one[0])
    report = Report("start-up", given.ranks, table(wall, marks))
    print(f"load of the machine: {os.getloadavg()[0]:.1f}")
    up = max(one["init"] for one in marks)
    report.goals = [Goal("seconds until the last rank is through init", up, LIMIT_SECONDS)]
    return report.finish(given.json)


if __name__ == "__main__":
    raise SystemExit(main())
