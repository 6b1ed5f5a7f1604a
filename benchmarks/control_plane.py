"""What control messages cost with up to 10,000 ranks, simulated: tables and a picture.

    python -m benchmarks.control_plane --plot docs/images/control_plane.png --json out.json

Runs build/ops/sim/control/tfring_control_sim for each scheme and number of ranks. Messages, bytes
and hops are those of the protocol; seconds are by a model of costs, which docs/control_plane.md
explains.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAM = "build/ops/sim/control/tfring_control_sim"
SCHEMES = {
    "star": "star (what jobs use)",
    "tree": "tree",
    "horovod_gather": "Horovod over MPI: gather",
    "horovod_ring": "Horovod over Gloo: ring",
}
# Colours of C. Wong's palette, as in tfring/bench/plot.py.
COLORS = {
    "star": "#d55e00",
    "tree": "#0072b2",
    "horovod_gather": "#009e73",
    "horovod_ring": "#cc79a7",
}
RANKS = (2, 8, 64, 256, 1000, 4000, 10_000)
OTHERS = (1, 10, 100)
OTHERS_AMONG = 1000  # ranks
MAX_BYTES = 64 * 1024
PARTS = {
    "messages": "messages of all ranks",
    "busiest_bytes": "bytes of the busiest rank",
    "seconds": "seconds",
    "carrying_seconds": "seconds without rank 0's counting",
}

Row = dict[str, Any]


def simulate(program: str, scheme: str, ranks: int, *options: str) -> list[Row]:
    """The rows of one first step and one steady step."""
    command = [program, f"--scheme={scheme}", f"--ranks={ranks}", *options]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def rows_of(program: str, scheme: str, ranks: int, *options: str) -> list[Row]:
    """With the seconds that are left if rank 0 counts requests in no time."""
    rows = simulate(program, scheme, ranks, *options)
    bare = simulate(program, scheme, ranks, "--request-ns=0", "--id-ns=0", *options)
    for row, without in zip(rows, bare, strict=True):
        row["carrying_seconds"] = without["seconds"]
        print(json.dumps(row), flush=True)
    return rows


def table(rows: list[Row], step: str) -> list[str]:
    """The lines of a table in Markdown: a row for each scheme and number of ranks."""
    lines = [
        "| ranks | | hops | messages | busiest rank: messages | bytes | s | s without counting |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if row["step"] != step:
            continue
        name = SCHEMES[row["scheme"]] + (f", {row['others']} differ" if row["others"] else "")
        numbers = [row[key] for key in ("hops", "messages", "busiest_messages", "busiest_bytes")]
        times = [f"{row[key]:.2g}" for key in ("seconds", "carrying_seconds")]
        cells = [f"{row['ranks']:,}", name, *(f"{number:,}" for number in numbers), *times]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def draw(rows: list[Row], path: str) -> None:
    """Curves over the number of ranks: a column for each step, a row for each of PARTS."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.hashsalt"] = "tfring"  # the same picture from the same numbers
    figure = Figure(figsize=(10, 3.2 * len(PARTS)), layout="constrained")
    every = figure.subplots(len(PARTS), 2, squeeze=False)
    for axes_row, (key, label) in zip(every, PARTS.items(), strict=True):
        for axes, step in zip(axes_row, ("first", "steady"), strict=True):
            for scheme, name in SCHEMES.items():
                own = [row for row in rows if (row["scheme"], row["step"]) == (scheme, step)]
                own.sort(key=lambda row: row["ranks"])
                xs = [row["ranks"] for row in own]
                axes.loglog(xs, [row[key] for row in own], "o-", ms=3, color=COLORS[scheme])
                axes.lines[-1].set_label(name)
            axes.set_title(f"{step} step: {label}", fontsize="medium")
            axes.set_xlabel("ranks")
            axes.grid(alpha=0.3)
    every[0][0].legend(fontsize="small")
    figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)


def unmet_goals(rows: list[Row], fan_out: int) -> list[str]:
    """What goes against the goals of the tree."""
    unmet = []
    for row in rows:
        if row["scheme"] != "tree" or row["others"]:
            continue
        hops = 2 * math.ceil(math.log(row["ranks"], fan_out) - 1e-9)
        if row["hops"] > hops or row["busiest_bytes"] >= MAX_BYTES:
            unmet.append(f"more than {hops} hops or {MAX_BYTES} bytes: {row}")
    return unmet


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", default=PROGRAM)
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--fan-out", type=int, default=10)
    parser.add_argument("--tensors", type=int, default=300)
    parser.add_argument("--others", type=int, nargs="*", default=OTHERS, help="ranks that differ")
    parser.add_argument("--json", help="a file for the rows")
    parser.add_argument("--plot", help="a file for the picture: .svg, .png")
    arguments = parser.parse_args()
    options = [f"--fan-out={arguments.fan_out}", f"--tensors={arguments.tensors}"]
    rows = [
        row
        for ranks in arguments.ranks
        for scheme in SCHEMES
        for row in rows_of(arguments.program, scheme, ranks, *options)
    ]
    differing = [
        row
        for others in arguments.others
        for row in rows_of(arguments.program, "tree", OTHERS_AMONG, *options, f"--others={others}")
    ]
    for step in ("first", "steady"):
        print("\n".join(["", f"{step} step", "", *table(rows + differing, step)]))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows + differing, indent=1), "utf-8")
    if arguments.plot:
        draw(rows, arguments.plot)
    unmet = unmet_goals(rows, arguments.fan_out)
    print("\n".join(unmet), file=sys.stderr, end="")
    return 1 if unmet else 0


if __name__ == "__main__":
    sys.exit(main())
