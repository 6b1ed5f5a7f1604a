"""The time that allreduces within a host add to a tf.function, compared with their goals.

    mpirun -np 2 python -m benchmarks.goals --json out.json

With TFRING_LOCK_SCHEDULE=0 it measures without a locked schedule.

"net" is the time of a function minus that of the same function without allreduce, "copy" that of
copying as many bytes (in a training step: its gradients) on all ranks at once. "other net" is the
time that TensorFlow's DeepCopy of each tensor adds instead of the allreduce: the cost of an
operation that only copies. The candidates of a row take turns; each row runs alone, so that its
collectives repeat and a schedule can be locked.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import common, resnet50
from tfring.bench.timing import alternate, timed

KIB, MIB = 1 << 10, 1 << 20
GROUPS = ("sizes", "sets", "steps")


@dataclass(frozen=True)
class Wanted:
    """A row: a measurement and its limit.

    Attributes:
        group: One of GROUPS.
        what: A description for readers.
        case: A case of tfring.bench.
        way: One of its candidates.
        limit: The number.
        of: The unit of the limit: ms of net time, or net time over the time of copying, or the
            whole time over that of the bare function.
        counts: Elements (float32) of each tensor.
    """

    group: str
    what: str
    case: Any
    way: str
    limit: float
    of: str
    counts: tuple[int, ...]


def wanted(arguments: argparse.Namespace) -> Iterator[Wanted]:
    """Yields the rows, the same on all ranks."""
    from tfring.bench import models
    from tfring.bench.cases import collective_case, set_case, step_case

    least = 0.15 if arguments.threads else 0.03
    for count, limit, of in (
        (4, least, "ms"),
        (64 * KIB, 0.06, "ms"),
        (MIB, 0.15, "ms"),
        (16 * MIB, 1.2, "copy"),
        (64 * MIB, 1.0, "copy"),
    ):
        case = collective_case("allreduce", count, "float32")
        yield Wanted("sizes", case.label, case, "call", limit, of, (count // 4,))
    shapes, many = resnet50.shapes(), [(256,)] * 500
    resnet, small = set_case("ResNet-50", shapes), set_case("500 x 1 KiB", many)
    of_resnet, of_small = (tuple(math.prod(shape) for shape in each) for each in (shapes, many))
    for case, way, limit, of, counts in (
        (resnet, "grouped", 1.3, "copy", of_resnet),
        (resnet, "separate", 1.5, "copy", of_resnet),
        (small, "grouped", 0.8, "ms", of_small),
        (small, "separate", 2.5, "ms", of_small),
    ):
        yield Wanted("sets", f"{case.label}, {way}", case, way, limit, of, counts)
    for kind, limit in (("mlp", 1.10), ("cnn", 1.02)):
        case = step_case(kind)
        counts = tuple(models.counts(kind))
        yield Wanted("steps", case.label, case, "step", limit, "bare", counts)


def deep_copies(counts: Sequence[int]) -> Any:
    """Returns a function that copies the tensors that the other candidates reduce."""
    import tensorflow as tf

    from tfring.bench.cases import compiled

    tensors = [tf.ones([count]) for count in counts]
    return compiled(lambda values: [tf.raw_ops.DeepCopy(x=x + x) for x in values], tensors)


def measure(comm: Any, row: Wanted, scale: float) -> dict[str, Any]:
    """Times a row; the result is the same on all ranks."""
    from tfring.bench.cases import copying

    sync = common.MpiSync(comm)
    calls = row.case.build()
    if "copy" not in calls:
        calls["copy"] = copying([4 * count for count in row.counts])
    if row.group != "steps":
        calls["other"] = deep_copies(row.counts)
    names = [name for name in (row.way, "bare", "other", "copy") if name in calls]
    turns = {name: timed(sync.barrier, calls[name]) for name in names}
    rounds = max(5, int(row.case.rounds * scale))
    # Long enough for the schedule to be locked.
    times = alternate(sync, turns, rounds, calls=row.case.calls, warmup=10)
    took = {name: values.ravel().tolist() for name, values in times.items()}
    whole, bare = common.median(took[row.way]), common.median(took["bare"])
    net = common.median_difference(took[row.way], took["bare"])
    copy = common.median(took["copy"])
    other = common.median_difference(took["other"], took["bare"]) if "other" in calls else None
    number = {"ms": net, "copy": net / copy if copy else None, "bare": whole / bare}[row.of]
    return {
        "what": row.what,
        "whole_ms": whole,
        "bare_ms": bare,
        "copy_ms": copy,
        "net_ms": net,
        "other_net_ms": other,
        "number": number,
        "of": row.of,
    }


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--only", choices=GROUPS, action="append", help="may be given repeatedly")
    parser.add_argument("--scale", type=float, default=1.0, help="times the number of rounds")
    parser.add_argument(
        "--threads", action="store_true", help="leave TensorFlow as many threads as it takes"
    )
    arguments = parser.parse_args()

    import tfring as hvd

    hvd.init()
    if not arguments.threads:
        common.one_core()
    comm = common.world_comm()
    report = common.Report("goals", hvd.size())
    for row in wanted(arguments):
        if arguments.only and row.group not in arguments.only:
            continue
        report.rows.append(measure(comm, row, arguments.scale))
        what = f"{row.what}, {'ms net' if row.of == 'ms' else f'times {row.of}'}"
        report.goals.append(common.Goal(what, report.rows[-1]["number"], row.limit))
    code = report.finish(arguments.json) if hvd.rank() == 0 else 0
    hvd.shutdown()
    return code


if __name__ == "__main__":
    sys.exit(main())
