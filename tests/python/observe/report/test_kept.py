"""The parts of a report that stay when the records are gone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from made_records import write_training

from tfring.observe.recorder.job import load_job
from tfring.observe.report.summary import make_report
from tfring.observe.report.text import keep_report


def test_text_and_series_stay_of_the_newest_steps(tmp_path: Path) -> None:
    own = np.full((2, 30), 10.0)
    own[1] += 5
    report = make_report(load_job([write_training(tmp_path, own)]))
    found = json.loads(json.dumps(keep_report(report)))
    series = found["series"]
    assert found["size"] == 2 and "own work" in found["text"]
    assert series["step"] == report.steps.number.tolist() and series["ranks"] == [0, 1]
    assert len(series["total"]) == len(series["step"]) == len(series["own"][1])
    assert series["own"][1][-1] == 15_000 and series["waiting"][0][-1] == 5_000


def test_a_long_job_leaves_little(tmp_path: Path) -> None:
    report = make_report(load_job([write_training(tmp_path, np.full((4, 3000), 10.0))]))
    series = keep_report(report)["series"]
    assert series["step"] == report.steps.number[-2000:].tolist()
    assert len(json.dumps(keep_report(report))) < 200_000
