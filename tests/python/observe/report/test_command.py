"""`tfring report` and `tfring run --report`: what users see."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launcher_tools import run, write_script
from made_records import NOBODY, write_record, write_training

from tfring.launch.cli import main
from tfring.observe.recorder.layout import EventType

JOB = """
    import numpy as np
    import tfring
    tfring.init()
    from tfring.runtime._native import core
    for step in range(5):
        core.allgather(np.ones(1000, np.float32), name="x")
    core.mark("half way")
    raise SystemExit(3)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The records of three ranks, of which the last becomes slow in step 101."""
    own = 20 * np.random.default_rng(1).lognormal(0, 0.05, (3, 300))
    own[2, 100:] += 10
    return write_training(tmp_path_factory.mktemp("job"), own)


def test_the_report_says_where_the_time_goes(folder: Path, capsys: Any) -> None:
    assert main(["report", str(folder)]) == 0
    text = capsys.readouterr().out
    assert re.search(r"\): \d\d\.\d% own work, \d+\.\d% exchange \(of it \d+\.\d% waiting", text)
    assert "The others waited longest for rank 2 (here)" in text
    assert re.search(r"Rank 2 has become slow since step (99|10[0-5]): [\d.]+ ms more", text)
    rows = [line.split() for line in text.splitlines() if re.match(r" +\d+ +here", line)]
    assert [row[0] for row in rows] == ["0", "1", "2"]
    waited = [float(row[-1]) for row in rows]
    assert max(waited) == waited[2]


def test_fit_says_how_far_it_is_and_where_its_own_work_goes(tmp_path: Path, capsys: Any) -> None:
    fit = {"epoch": 2, "epochs": 3, "step": 20, "has_loss": 1}
    spent = {"input_time": 20 * 4_000_000, "callback_time": 20 * 1_000_000}
    folder = write_training(tmp_path, np.full((2, 20), 10.0), loss=0.25, **fit, **spent)
    assert main(["report", str(folder)]) == 0
    text = capsys.readouterr().out
    assert "Epoch 2 of 3, step 20: loss 0.25.\n" in text
    shares = re.search(r"own work \(of it ([\d.]+)% input and ([\d.]+)% callbacks\)", text)
    assert shares and float(shares[1]) == pytest.approx(4 * float(shares[2]), abs=0.3)
    names = next(line.split() for line in text.splitlines() if line.startswith(" rank"))
    assert names[3:] == ["own", "work", "input", "callbacks", "exchange", "waiting", "awaited"]
    row = next(line.split() for line in text.splitlines() if re.match(r" +0 +here", line))
    assert row[4:6] == ["4.00", "1.00"]


@pytest.mark.parametrize("why", ["; its callbacks take 5 ms.", "."])
def test_what_keeps_the_slowest_rank_is_named(tmp_path: Path, capsys: Any, why: str) -> None:
    own = np.full((2, 20), 10.0)
    own[1] += 5
    spent = {"callback_time": 20 * 5_000_000, "input_time": 20 * 2_000_000} if "its" in why else {}
    folder = write_training(tmp_path, own, epoch=1, epochs=1, step=20, **spent)
    assert main(["report", str(folder)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert f"The others waited longest for rank 1 (here): 5 ms per step{why}" in shown


def test_what_is_wrong_comes_first(tmp_path: Path, capsys: Any) -> None:
    for rank in range(2):
        write_record(tmp_path / f"rank-{rank}.record", rank, 2, pid=os.getpid() if rank else NOBODY)
    assert main(["report", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("Rank 0 (host host, process 4194304) is gone: its")


def test_the_newest_lines_of_the_program_are_in_it(tmp_path: Path, capsys: Any) -> None:
    for rank in range(2):
        events = [
            {"number": n, "type": EventType.MARK, "time": 2 * n + rank, "text": f"said {n}"}
            for n in range(1, 16)
        ]
        write_record(tmp_path / f"rank-{rank}.record", rank, 2, events=events)
    assert main(["report", str(tmp_path)]) == 0
    said = re.findall(r"^Rank (\d) noted: said (\d+)$", capsys.readouterr().out, re.M)
    assert said == [(str(rank), str(n)) for n in range(6, 16) for rank in range(2)]


# Hosts may have any name, and records come from anywhere.
MARKUP = ['[link=//e.vil"><h1>]x[/]', "[/evil]", "<b>&amp;</b> [red]x"]


@pytest.mark.parametrize("host", MARKUP)
def test_texts_of_a_record_are_no_markup(tmp_path: Path, capsys: Any, host: str) -> None:
    mark = {"number": 1, "type": EventType.MARK, "time": 5, "text": host}
    call = {"number": 1, "name": host, "call_site": host, "submitted": 1}
    for rank in range(2):
        path = tmp_path / f"rank-{rank}.record"
        write_record(path, rank, 2, calls=[call], events=[mark], host=host)
    for command in (["report"], ["explain"], ["top", "--once", "-n", "0.05"]):
        assert main([*command, str(tmp_path)]) == 0
        shown = "".join(capsys.readouterr().out.split())
        # In a report they are in its table, and in what the program has noted.
        assert shown.count("".join(host.split())) >= (4 if command == ["report"] else 1), command


def test_run_report_prints_it_also_of_a_job_that_failed(tmp_path: Path) -> None:
    ended = run("-np", 2, "--report", sys.executable, write_script(tmp_path, JOB))
    assert ended.returncode == 3, ended.stderr
    assert re.search(r"Job \w+: 2 ranks\n", ended.stderr)
    assert "Rank 1 noted: half way" in ended.stderr
    assert "Time per step" in ended.stderr


def test_run_report_refuses_other_hosts_without_a_common_folder(capsys: Any) -> None:
    hosts = ["-H", "a.invalid:1,b.invalid:1"]
    assert main(["run", "-np", "2", *hosts, "--report", "true"]) == 2
    assert "needs TFRING_RECORD_DIR" in capsys.readouterr().err
