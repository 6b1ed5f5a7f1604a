"""The measurements of `tfring bench`, compared with other libraries.

    mpirun -np 2 python -m benchmarks.peers --against gloo,mwms --max-bytes 1M --json out.json

It takes the options of `tfring bench`. Times are in ms, medians of the slowest rank: of a
tf.function minus the same function without communication; of training steps the whole time.

- mpi: mpi4py on numpy arrays. Needs mpirun.
- gloo: torch.distributed on tensors in place; many tensors by one asynchronous call each. No steps.
  Needs `pip install torch`.
- mwms: MultiWorkerMirroredStrategy with RING. allreduce, allgather, models and steps.

gloo and mwms have a separate process beside each rank, which sleeps until its turn.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from typing import Any

from benchmarks import common

PEERS = ("mpi", "gloo", "mwms")


def wanted(options: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yields cases of tfring.bench, with their description for the peers."""
    from tfring.bench import models
    from tfring.bench.cases import collective_case, set_case, step_case

    for kind in options.collectives:
        for count in options.sizes():
            spec = {"kind": kind, "bytes": count, "dtype": options.dtype}
            yield collective_case(kind, count, options.dtype), spec
    for name in options.models:
        shapes = models.gradient_shapes(name)
        if isinstance(shapes, str):
            raise SystemExit(shapes)
        counts = [math.prod(shape) for shape in shapes]
        spec = {"kind": "set", "counts": counts, "dtype": options.dtype}
        yield set_case(f"model {name}", shapes, options.dtype), spec
    for kind in options.steps:
        spec = {"kind": "step", "model": kind, "counts": models.counts(kind), "dtype": "float32"}
        yield step_case(kind), spec


def measure(sync: Any, team: Any, case: Any, spec: dict[str, Any]) -> dict[str, Any]:
    """Times a case; the result is the same on all ranks."""
    import numpy as np

    from tfring.bench.timing import alternate, timed

    calls = case.build()
    way = case.ways[0]
    turns = {name: timed(sync.barrier, calls[name]) for name in (way, "bare")}
    theirs, left_out = team.prepare(spec, calls["bare"])
    times = alternate(sync, {**turns, **theirs}, case.rounds, calls=case.calls)
    added = np.median(times[way] - times["bare"])
    ours = np.median(times[way]) if spec["kind"] == "step" else added
    peers = {name: float(np.median(times[name])) if name in times else None for name in PEERS}
    return {"what": case.label, "tfring": float(ours), **peers, "notes": "; ".join(left_out)}


def main() -> int:
    from tfring.bench.options import add_options, bench_options

    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    here = [name for name in PEERS if name != "gloo" or find_spec("torch")]
    parser.add_argument("--against", default=",".join(here), help="peers, separated by commas")
    arguments = parser.parse_args()
    names = arguments.against.split(",")
    if unknown := set(names) - set(PEERS):
        parser.error(f"--against {', '.join(unknown)}: there are {', '.join(PEERS)}")

    import tfring as hvd
    from benchmarks.peers.team import Team
    from tfring.bench.sync import RankSync

    hvd.init()
    common.one_core()
    sync = RankSync()
    report = common.Report("peers", hvd.size())
    with closing(Team(names, sync)) as team:
        for case, spec in wanted(bench_options(arguments)):
            report.rows.append(measure(sync, team, case, spec))
    code = report.finish(arguments.json) if hvd.rank() == 0 else 0
    hvd.shutdown()
    return code


if __name__ == "__main__":
    sys.exit(main())
