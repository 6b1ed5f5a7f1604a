"""The two lines of a job that goes well."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from made_records import write_record, write_training

from tfring.observe.recorder.job import load_job
from tfring.observe.recorder.layout import EventType
from tfring.observe.recorder.marks import EQUAL, ROUNDED
from tfring.observe.report import run_lines
from tfring.observe.report.summary import Report, make_report
from tfring.version import __version__


@pytest.mark.parametrize(
    ("hosts", "devices", "where"),
    [
        (["vm"], "2 CPUs", "2 ranks on vm (2 CPUs)"),
        (["a", "b"], "", "2 ranks on a, b"),
        (["a", "b", "c", "d"], "", "2 ranks on 4 hosts"),
        ([], "", "2 ranks"),
    ],
)
def test_the_first_line(hosts: list[str], devices: str, where: str) -> None:
    line = run_lines.first_line(
        "6d83ae0123456789", "2 ranks", hosts, devices=devices, transport="shared memory"
    )
    assert line == f"tfring {__version__}  job 6d83ae  {where}  shared memory  watch: tfring top"


@pytest.fixture
def report(tmp_path: Path) -> Report:
    """Rank 1 is slower, so rank 0 waits for it."""
    own = np.full((2, 30), 10.0)
    own[1] += 5
    made = make_report(load_job([write_training(tmp_path, own)]))
    assert made.equal is None
    return dataclasses.replace(made, equal=True)


def test_the_last_line(report: Report) -> None:
    wide = run_lines.last_line(134.0, report)
    begin, _, end = wide.partition(". ")
    assert begin == "tfring: done in 2 min 14 s, all ranks equal"
    computing, waiting, communication = end.split(", ")
    assert computing.endswith("% computing") and communication.endswith("% communication")
    assert waiting.endswith("% waiting (100% of it for rank 1)")
    shares = [int(part.partition("%")[0]) for part in (computing, waiting, communication)]
    assert sum(shares) == 100 and shares[1] > 10


def test_what_is_not_known_is_left_out(report: Report, tmp_path: Path) -> None:
    unknown = dataclasses.replace(report, equal=None)
    assert run_lines.last_line(0.5, unknown).startswith("tfring: done in 0.5 s. ")
    rounded = dataclasses.replace(report, equal=False)
    assert "all ranks equal but for rounding. " in run_lines.last_line(14.0, rounded)
    idle = make_report(load_job([write_training(tmp_path / "idle", np.zeros((2, 0)))]))
    for none in (idle, None):
        assert run_lines.last_line(3700.0, none) == "tfring: done in 1 h 1 min"


@pytest.mark.parametrize(
    ("hosts", "ranks", "devices", "runtime", "carrier"),
    [
        (1, 1, "2 CPUs", {}, ""),
        (0, 2, "", {}, ""),
        (1, 2, "2 CPUs", {}, "shared memory"),
        (1, 2, "2 CPUs", {"SHARED_MEMORY": "0"}, "TCP"),
        (1, 2, "2 CPUs", {"CPU_OPERATIONS": "tcp"}, "TCP"),
        (2, 2, "", {}, "TCP between hosts"),
        (2, 2, "", {"CPU_OPERATIONS": "mpi"}, "MPI"),
        (1, 2, "2 GPUs", {}, ""),
        (1, 2, "2 GPUs", {"GPU_OPERATIONS": "nccl"}, "NCCL"),
        (1, 2, "2 GPUs", {"GPU_OPERATIONS": "host"}, "shared memory"),
    ],
)
def test_what_carries_the_data(
    hosts: int, ranks: int, devices: str, runtime: dict[str, str], carrier: str
) -> None:
    assert run_lines.transport(hosts, ranks, devices, runtime) == carrier


@pytest.mark.parametrize(
    ("marks", "equal"),
    [(["another"], None), ([EQUAL], True), ([EQUAL, ROUNDED, "another"], False)],
)
def test_the_last_fit_says_whether_the_ranks_are_equal(
    marks: list[str], equal: bool | None, tmp_path: Path
) -> None:
    events = [
        {"type": EventType.MARK, "time": 1000 + place, "text": text}
        for place, text in enumerate(marks)
    ]
    record = write_record(tmp_path / "job" / "rank-0.record", events=events)
    made = make_report(load_job([record]))
    assert made.equal is equal
    assert [text for _, text in made.notes] == [text for text in marks if text == "another"]
