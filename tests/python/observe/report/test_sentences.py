"""The sentences of a report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from made_records import MS, write_training

from tfring.observe.recorder.job import load_job
from tfring.observe.report.slowdowns import OWN_WORK, Slowdown
from tfring.observe.report.summary import make_report
from tfring.observe.report.text import write_sentences


def test_of_slowdowns_that_are_over_the_costly_ones_are_named(tmp_path: Path) -> None:
    over = [
        Slowdown(1, first, float(MS), OWN_WORK, first + steps)
        for first, steps in ((10, 5), (30, 50), (100, 20), (200, 1), (300, 10))
    ]
    lasts = Slowdown(None, 400, float(MS), "communication")
    report = make_report(load_job([write_training(tmp_path, np.full((2, 20), 10.0))]))
    lines = write_sentences(replace(report, slowdowns=(*over, lasts)))
    named = [line for line in lines if " slow" in line and "since step" in line]
    begins = [line.split("since step ")[1].split(":")[0] for line in named]
    assert begins == ["30", "100", "300", "400"]
    assert lines[-1] == "2 smaller past slowdowns are not listed."
