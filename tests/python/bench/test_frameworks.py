"""The comparison with other frameworks: its numbers, its page, and a short run of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import launcher_tools as tools
import numpy as np
import pytest

from benchmarks import charts
from benchmarks.frameworks import models, page, results
from benchmarks.frameworks.rank import Clock


def test_ranks_share_each_global_batch() -> None:
    rows = np.arange(models.GLOBAL_BATCH * 3)
    parts = [models.rows_of(rows, rank, 4) for rank in range(4)]
    first = np.concatenate([part[: models.GLOBAL_BATCH // 4] for part in parts])
    assert first.tolist() == list(range(models.GLOBAL_BATCH))
    assert sorted(np.concatenate(parts).tolist()) == rows.tolist()


def test_a_clock_leaves_out_the_first_step_of_an_epoch() -> None:
    clock = Clock(lambda: 5, "", lambda: None)
    for _ in range(2):
        clock.epoch()
        for _ in range(4):
            clock.step()
    assert [len(epoch) for epoch in clock.epochs] == [3, 3]
    assert [moved for _, moved, _ in clock.counts] == [5, 5]


def trained(steps: list[float], network: int, processor: float) -> dict[str, Any]:
    """What a rank writes of a model: the first epoch is slow and does not count."""
    return {
        "build_s": 0.5,
        "epochs": [[9.0] * len(steps), steps],
        "counts": [[0, 0, 0], [100, 10, 1], [100 + network, 10 + 32 * 7, 1 + processor]],
        "weights": "same",
    }


def test_a_job_is_as_slow_as_its_slowest_rank() -> None:
    found = [
        {
            "init_s": 1.0 + rank,
            "alone": {"mlp": trained([0.010 + rank / 1000] * 3, 0, 0.32)},
            "together": {"mlp": trained(steps, 32 * 2 * 50, 0.64 + rank)},
        }
        for rank, steps in enumerate([[0.02, 0.01, 0.03], [0.01, 0.04, 0.02]])
    ]
    job = results.of_job(found)
    assert job["start_s"] == 2.5
    assert job["equal_weights"]
    assert job["models"]["mlp"] == {
        "alone_ms": pytest.approx(11.0),
        "step_ms": pytest.approx(30.0),  # of 20, 40 and 30
        "overhead": pytest.approx(30.0 / 11.0),
        "processor_ms": pytest.approx(20.0),
        "processor_overhead": pytest.approx(1.64 / 0.32),
        "network_bytes": 50.0,
        "moved_bytes": 7.0,
    }
    found[1]["together"]["mlp"]["weights"] = "others"
    assert not results.of_job(found)["equal_weights"]


def test_a_chart_has_a_bar_for_each_value(tmp_path: Path) -> None:
    path = tmp_path / "a.svg"
    charts.bars(path, "a < b", {"x": {"one": (1, 1, 2), "two": (2, 1, 3)}, "y": {"one": (4, 4, 4)}})
    drawn = ElementTree.parse(path).getroot()
    boxes = drawn.findall("{http://www.w3.org/2000/svg}rect")
    assert len(boxes) == 1 + 2 + 3  # the ground, the legend, the bars
    heights = [float(box.attrib["height"]) for box in boxes[3:]]
    assert heights[1] / heights[0] == pytest.approx(2, rel=0.01)
    assert heights[2] / heights[0] == pytest.approx(4, rel=0.01)


def test_the_page_says_what_failed_and_what_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"before\n<!-- {page._MARKER}: begin -->\nold\n<!-- {page._MARKER}: end -->\nafter\n"
    target = tmp_path / "docs/comparison.md"
    (tmp_path / "docs/images").mkdir(parents=True)
    target.write_text(text)
    monkeypatch.setattr(page, "ROOT", tmp_path)
    monkeypatch.setattr(page, "_PAGE", target)
    model = {"step_ms": 3.0, "overhead": 1.5, "network_bytes": 2e6, "moved_bytes": 3e6}
    model["processor_overhead"] = 1.25
    run = {"peer": "tfring", "ranks": 2, "round": 0, "start_s": 0.7, "models": {"mlp": model}}
    fault = {
        "peer": "tfring",
        "fault": "kill",
        "seconds": 1.25,
        "codes": [1],
        "said_after_s": 0.1,
        "said": "rank 1 | was killed",
        "equal_weights": None,
    }
    first: dict[str, Any] = {
        "machine": {"cpu": "a processor", "cores": 2, "load": 0.1},
        "network": True,
        "epochs": {"mlp": 2},
        "versions": {"tfring": {"keras": "3.15.1"}},
        "skipped": {"mwms": "no tf_keras"},
        "checks": [{"peer": "tfring", "ranks": 2, "mlp": 1e-7, "mlp_of_first": 0.0}],
        "runs": [run, {"peer": "torch-ddp", "ranks": 2, "round": 0, "error": "lost"}],
        "faults": [],
    }
    page.write([first, {"checks": [], "runs": [], "faults": [fault]}])
    made = target.read_text()
    assert made.startswith("before\n") and made.endswith("after\n") and "old" not in made
    assert "| tfring | 3 | 1.5 (1.5 to 1.5) |" in made
    assert "| tfring | 2 | 0.7 (0.7 to 0.7) | 1.25 | 2.00 of 3.00 |" in made
    assert "| tfring | 1.2 s | 1 | 0.1 s | rank 1 / was killed |" in made
    assert (
        "2 ranks: 1 runs of each; 1 in all failed." in made
        and "mwms is not there: no tf_keras" in made
    )
    assert (tmp_path / "docs/images/compare_2_ranks_alone.svg").exists()


@pytest.mark.parametrize(
    "peers",
    [
        pytest.param("tfring", marks=pytest.mark.slow),
        pytest.param("tfring-tcp,torch-ddp,keras-torch,keras-jax,mwms", marks=pytest.mark.soak),
    ],
)
def test_a_quick_comparison(peers: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    words = ["--quick", "--no-install", "--models", "mlp", "--peers", peers, "--json", str(path)]
    done = tools.run_python("-m", "benchmarks.frameworks", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(path.read_text())
    there = [peer for peer in peers.split(",") if peer not in found["skipped"]]
    assert [row["peer"] for row in found["checks"]] == there
    assert all(row["mlp"] < 1e-3 for row in found["checks"])
    assert sorted(row["peer"] for row in found["runs"]) == sorted(there)
    for row in found["runs"]:
        assert row["equal_weights"]
        assert row["models"]["mlp"]["overhead"] > 0.1
