"""The page that shows what `make bench` measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import measured

WAYS = [{"way": "Open MPI", "median_ms": 4.0}, {"way": "tfring", "median_ms": 2.0}]
ROWS: dict[str, list[dict[str, Any]]] = {
    "allreduce_by_size": [
        {"bytes": 4, "open_mpi_ms": 0.01, "tfring_eager_ms": 0.2, "tfring_graph_ms": 0.1},
        {"bytes": 1 << 20, "open_mpi_ms": 1.5, "tfring_eager_ms": 1.2, "tfring_graph_ms": 1.0},
    ],
    "resnet50_set": WAYS,
    "small_tensors": WAYS,
    "training_step": [
        {"model": "mlp", "alone_ms": 3.0, "local_ms": 4.0, "tfring_ms": 5.0, "open_mpi_ms": 6.0}
    ],
    "peers": [
        {"what": "allreduce of 4 B", "tfring": 0.1, "mpi": 0.01, "gloo": None, "mwms": 1.0},
        {"what": "step mlp", "tfring": 5.0, "mpi": 6.0, "gloo": None, "mwms": 7.0},
        {"what": "allreduce of 16 B", "tfring": 0.2, "mpi": 0.02, "gloo": None, "mwms": 2.0},
    ],
}
GOAL = {"what": "a goal", "value": 2.0, "limit": 1.0, "met": False}


def test_the_page_has_all_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, rows in ROWS.items():
        found = {"ranks": 2, "machine": {"cpu": "a processor", "cores": 2}, "rows": rows}
        found |= {"versions": {"tfring": "0.1.0"}, "goals": [GOAL] if name == "peers" else []}
        (tmp_path / f"{name}.json").write_text(json.dumps(found))
    page = tmp_path / "page.md"
    page.write_text(f"<!-- {measured._MARKER}: begin -->\n<!-- {measured._MARKER}: end -->\n")
    monkeypatch.setattr(measured, "_PAGE", page)
    monkeypatch.setattr(measured, "_IMAGES", tmp_path)
    monkeypatch.setattr(sys, "argv", ["measured", str(tmp_path)])
    assert measured.main() == 0
    made = page.read_text()
    assert "| 1 MiB | 1.5 | 1.2 | 1 |" in made
    assert "| 500 of 1 KiB | 4 | 2 |" in made
    assert "| mlp | 3 | 4 | 5 | 6 |" in made
    assert "| 16 B | 0.2 | 0.02 | 2 |" in made and "step mlp" not in made
    assert "| a goal | 2 | 1 | no |" in made
    assert len(list(tmp_path.glob("measured_*.svg"))) == 4
