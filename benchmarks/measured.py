"""Writes docs/measured.md and its charts from the files of `make bench`.

python -m benchmarks.measured build/bench
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks import charts
from tfring.runtime.texts.sizes import size_text

_ROOT = Path(__file__).resolve().parents[1]
_IMAGES = _ROOT / "docs/images"
_PAGE = _ROOT / "docs/measured.md"
_MARKER = "made by python -m benchmarks.measured"
_MPI = "Open MPI"


def section(title: str, image: str, text: str, table: str) -> str:
    """Returns a part of the page."""
    picture = f"![{title}](images/{image})"
    return f"## {title}\n\n{text}\n\n{picture}\n\n{table}"


def sizes(rows: list[dict[str, Any]]) -> str:
    """Returns the part about allreduces by size."""
    names = {"open_mpi_ms": _MPI, "tfring_eager_ms": "tfring, eager", "tfring_graph_ms": "tfring"}
    series = {name: [(row["bytes"], row[key]) for row in rows] for key, name in names.items()}
    title = "Allreduce by size, ms"
    labels = {row["bytes"]: size_text(row["bytes"]).replace(".00", "") for row in rows}
    charts.lines(_IMAGES / "measured_sizes.svg", title, series, labels)
    cells = ([labels[row["bytes"]], *(f"{row[key]:.3g}" for key in names)] for row in rows)
    text = (
        "One allreduce, as a call and in a `tf.function`. Open MPI's is a plain call without\n"
        "TensorFlow: up to about 1 MiB the difference is TensorFlow, and that ranks must agree."
    )
    return section(title, "measured_sizes.svg", text, charts.table(["", *names.values()], cells))


def sets(rows: dict[str, list[dict[str, Any]]]) -> str:
    """Returns the part about many tensors."""
    groups = {
        label: {row["way"]: (row["median_ms"],) * 3 for row in found}
        for label, found in rows.items()
    }
    title = "Many tensors in a step, ms"
    charts.bars(_IMAGES / "measured_sets.svg", title, groups)
    ways = list(next(iter(groups.values())))
    cells = ([label, *(f"{group[way][0]:.3g}" for way in ways)] for label, group in groups.items())
    text = (
        "The 161 gradients of a ResNet-50 (97 MiB), and 500 tensors of 1 KiB: as one\n"
        "`grouped_allreduce`, and each tensor by itself."
    )
    return section(title, "measured_sets.svg", text, charts.table(["", *ways], cells))


def steps(rows: list[dict[str, Any]]) -> str:
    """Returns the part about training steps."""
    names = {
        "alone_ms": "one rank alone",
        "local_ms": "no exchange",
        "tfring_ms": "tfring",
        "open_mpi_ms": _MPI,
    }
    groups = {row["model"]: {name: (row[key],) * 3 for key, name in names.items()} for row in rows}
    title = "A training step, ms"
    charts.bars(_IMAGES / "measured_steps.svg", title, groups)
    cells = ([row["model"], *(f"{row[key]:.3g}" for key in names)] for row in rows)
    text = (
        "Models of 1.2 million weights, 32 images for each rank. One rank computes while the other "
        "sleeps;\nboth compute without exchange, which shows what sharing the machine costs; with "
        "tfring; with one\nIallreduce of Open MPI for each gradient after the step."
    )
    return section(title, "measured_steps.svg", text, charts.table(["", *names.values()], cells))


def peers(rows: list[dict[str, Any]]) -> str:
    """Returns the part about other libraries."""
    names = {"tfring": "tfring", "mpi": _MPI, "gloo": "PyTorch's gloo", "mwms": "MultiWorker"}
    names = {key: name for key, name in names.items() if any(row[key] for row in rows)}
    wanted = [row for row in rows if row["what"].startswith("allreduce of")]
    labels = [row["what"].split(" ", 2)[2].replace(".00", "") for row in wanted]
    series = {
        name: [(4.0 ** (at + 1), row[key]) for at, row in enumerate(wanted) if row[key] > 0]
        for key, name in names.items()
    }
    title = "What libraries add to a step by an allreduce, ms"
    points = {4.0 ** (at + 1): label for at, label in enumerate(labels)}
    charts.lines(_IMAGES / "measured_peers.svg", title, series, points)
    cells = (
        [label, *(f"{row[key]:.3g}" for key in names)]
        for label, row in zip(labels, wanted, strict=True)
    )
    text = (
        "tfring and MultiWorkerMirroredStrategy in a `tf.function`, minus the function without "
        "it; Open MPI\nand gloo as calls on arrays."
    )
    return section(title, "measured_peers.svg", text, charts.table(["", *names.values()], cells))


def goals(every: list[dict[str, Any]]) -> str:
    """Returns the goals of all benchmarks."""
    cells = (
        [goal["what"], f"{goal['value']:.3g}", f"{goal['limit']:g}", "yes" if goal["met"] else "no"]
        for found in every
        for goal in found["goals"]
    )
    return "## Goals\n\n" + charts.table(["", "measured", "at most", "met"], cells)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where `make bench` wrote its files")
    folder = parser.parse_args().folder
    found = {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(folder.glob("*.json"))
        if path.stem != "frameworks"
    }
    rows = {name: each["rows"] for name, each in found.items()}
    first = next(iter(found.values()))
    many = {"ResNet-50": rows["resnet50_set"], "500 of 1 KiB": rows["small_tensors"]}
    versions = ", ".join(f"{name} {number}" for name, number in first["versions"].items())
    parts = [
        f"{found['training_step']['ranks']} ranks on {first['machine']['cpu']}, "
        f"{first['machine']['cores']} cores.\n{versions}.\n",
        sizes(rows["allreduce_by_size"]),
        sets(many),
        steps(rows["training_step"]),
        peers(rows["peers"]),
        goals(list(found.values())),
    ]
    charts.between_markers(_PAGE, _MARKER, "\n".join(parts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
