"""The job that a tool shows by default, and the list of `tfring jobs`."""

from __future__ import annotations

import io
import json
import os
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from made_records import NOBODY, write_record
from rich.console import Console

from tfring.launch.cli import main
from tfring.observe.commands import profile
from tfring.observe.commands.jobs import JobRow, make_table
from tfring.observe.commands.which import resolve_job
from tfring.observe.profile import Profile, Sample
from tfring.observe.recorder import catalog, choice, places
from tfring.observe.recorder.layout import RankState
from tfring.observe.recorder.reader import RecordError
from tfring.observe.recorder.stacks import MAIN

SECOND = 1_000_000_000
WRONG = "^Rank 0 waits for rank 1 in allreduce of tensor 'loss'"
# Every tool that shows a job, and what it says of the one that hangs.
TOOLS = {
    "explain": "^Job 222222: Rank 0 waits for rank 1 in allreduce of tensor 'loss'",
    "top --once --interval 0.05": WRONG,
    "report": WRONG,
    "stacks": "^Ranks 0 and 1:",
    "dump": "2 of 2 ranks: tfring-2222222222222222",
    "profile": "2 of 2 ranks: profile-2222222222222222.speedscope.json",
    "timeline": "2 of 2 ranks, 1 calls: timeline-2222222222222222.json",
}


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(places, "MEMORY", tmp_path / "default")
    (tmp_path / "default").mkdir()
    return places.default_folder()


def id_at(place: int) -> str:
    return f"{place:x}" * 16


def write_job(base: Path, place: int, *, ranks: int = 2, hangs: bool = False, **header: object):
    """Notes a job that was started in this folder, whose ranks run and perhaps wait for rank 1."""
    catalog.note_begin(id_at(place), ["python", f"train{place}.py"], base, launched=True)
    folder = base / f"{id_at(place)}-0123456789ab"
    now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    call = {"name": "loss", "invocation": 1, "submitted": now - 90 * SECOND}
    times = {"started_monotonic": now - 100 * SECOND, "awake": now, "started_wall": place + 1}
    limit = {"stall_shutdown": 600 * SECOND}
    for rank in range(ranks):
        calls = [call] if hangs and rank != 1 else []
        known = {"pid": os.getpid(), "job": folder.name, **times, **limit, **header}
        write_record(folder / f"rank-{rank}.record", rank, ranks, calls, **known)
    return folder


def test_of_six_jobs_the_one_of_this_folder_is_shown(
    base: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ranks = {rank: Profile({MAIN: [Sample((), 1.0)]}) for rank in range(2)}
    monkeypatch.setattr(profile, "sample", lambda *given: ranks)
    for place in range(6):
        folder = tmp_path / f"folder{place}"
        folder.mkdir()
        monkeypatch.chdir(folder)
        write_job(base, place, hangs=place == 2)
    monkeypatch.chdir(tmp_path / "folder2")
    for command, says in TOOLS.items():
        assert main(command.split()) == 0
        shown = capsys.readouterr()
        assert shown.err == (
            f"job 222222: python train2.py, in {tmp_path}/folder2; 5 other jobs run: tfring jobs\n"
        )
        assert re.search(says, shown.out) and "333333" not in shown.out, command
    monkeypatch.chdir(tmp_path)
    for command in TOOLS:
        assert main(command.split()) == 2
        shown = capsys.readouterr()
        assert "6 jobs run on this host, none of them started in this folder: name" in shown.err
        assert all(f"{place}" * 6 in shown.err for place in range(6)) and not shown.out
    assert main(["explain", "222"]) == 0
    shown = capsys.readouterr()
    assert shown.err == "" and shown.out.startswith("Job 222222: Rank 0 waits for rank 1 in")
    assert re.search(r"The job ends in 8 min (\d+ s )?if\s+nothing changes\.$", shown.out.strip())
    assert main(["jobs", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["jobs"]
    assert [(row["id"], row["state"]) for row in rows] == [
        (id_at(place), "hangs" if place == 2 else "running") for place in range(5, -1, -1)
    ]


def test_a_job_that_ended_in_this_folder_counts_more_than_jobs_that_run_elsewhere(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in range(2):
        write_job(base, place)
    mine = tmp_path / "mine"
    mine.mkdir()
    monkeypatch.chdir(mine)
    catalog.note_begin(id_at(3), ["train"], base, launched=True)
    catalog.note_end(id_at(3), "failed", "Rank 1 was killed.", {})
    assert choice.choose_job().job == id_at(3)


def test_in_a_folder_that_is_gone_jobs_are_listed(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in range(2):
        write_job(base, place)
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(RecordError, match="2 jobs run on this host"):
        choice.choose_job()


def test_a_terminal_tells_two_jobs_of_one_folder_apart(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in range(2):
        monkeypatch.setattr(catalog, "own_terminal", lambda place=place: 7 + place)
        write_job(base, place, pid=NOBODY)  # no rank has come to init yet
    monkeypatch.setattr(choice, "own_terminal", lambda: 8)
    assert choice.choose_job().job == id_at(1)
    monkeypatch.setattr(choice, "own_terminal", lambda: 0)
    with pytest.raises(RecordError, match="2 jobs run here: name one"):
        choice.choose_job()


def test_the_one_job_that_runs_is_taken_wherever_it_was_started(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_job(base, 1)
    newer = write_job(base, 2, pid=NOBODY)
    catalog.note_end(id_at(2), "failed", "", {})
    monkeypatch.chdir(tmp_path)
    assert resolve_job([]) == [str(folder)]
    assert "tfring jobs" not in capsys.readouterr().err  # no other runs
    catalog.note_end(id_at(1), "ended", "", {})
    for path in folder.iterdir():
        path.unlink()
    assert resolve_job([]) == [str(newer)]
    assert "it is over" in capsys.readouterr().err


def test_a_job_that_went_well_is_still_explained_and_reported(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    catalog.note_begin(id_at(3), ["train"], base, launched=True)
    known = {"size": 2, "text": "Job 333333: 2 ranks\n", "series": {}}
    catalog.note_end(id_at(3), "ended", "", known)
    for name in (["333"], []):
        assert main(["report", *name]) == 0
        assert capsys.readouterr().out == "Job 333333: 2 ranks\n"
        assert main(["explain", *name]) == 0
        out = capsys.readouterr().out
        assert out.startswith("Job 333333: The job is over, without an error. It ran from ")
    assert main(["jobs"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:3] == ["333333", "ended", "2"]
    assert main(["top", "--once"]) == 2
    assert "job 333333 has no records on this host: they were removed" in capsys.readouterr().err
    catalog.note_begin(id_at(4), ["train"], base, launched=True)
    catalog.note_end(id_at(4), "failed", "Rank 1 was killed.", {})
    assert main(["explain", "444"]) == 0
    assert capsys.readouterr().out.startswith("Job 444444: Rank 1 was killed. It ran from")


def test_a_job_that_nobody_has_noted_is_listed(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    known = {"pid": os.getpid(), "job": "0123456789ab", "awake": now, "started_wall": 5}
    write_record(base / "0123456789ab" / "rank-0.record", 0, 4, **known)
    failed = {
        **known,
        "started_wall": 4,
        "pid": NOBODY,
        "job": "ba9876543210",
        "state": RankState.FAILED,
    }
    write_record(base / "ba9876543210" / "rank-0.record", 0, 2, **failed)
    assert main(["jobs"]) == 0
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["id", "state", "ranks", "age", "program", "folder"]
    assert first.split()[:3] == ["012345", "running", "4"]
    assert second.split()[:3] == ["ba9876", "failed", "2"] and second.split()[-2:] == ["?", "?"]


def test_of_the_generations_of_a_job_the_one_that_runs_is_shown_and_the_largest(
    base: Path,
) -> None:
    over, small, large = (base / f"{id_at(1)}-00000000000{i}" for i in range(3))
    for folder, size, pid, began in (
        (over, 9, NOBODY, 9),
        (small, 1, os.getpid(), 8),
        (large, 2, os.getpid(), 7),
    ):
        head = {"pid": pid, "job": folder.name, "started_wall": began}
        write_record(folder / "rank-0.record", 0, size, **head)
    found = choice.find_job("1111")
    assert [one.folder for one in found.generations] == [large, small, over]


def test_records_in_a_folder_of_the_user_are_found_by_the_id(base: Path, tmp_path: Path) -> None:
    catalog.note_begin(id_at(3), ["train"], tmp_path / "mine", launched=True)
    head = {"pid": os.getpid(), "job": f"{id_at(3)}-0123456789ab"}
    write_record(tmp_path / "mine" / head["job"] / "rank-0.record", 0, 1, **head)
    assert choice.find_records(choice.find_job("3333")) == [
        tmp_path / "mine" / head["job"] / "rank-0.record"
    ]


def test_names_that_fit_several_jobs_or_none_are_refused(base: Path) -> None:
    for place in (1, 2):
        write_job(base, place)
    catalog.note_begin("11again", ["other"], base, launched=True)
    with pytest.raises(RecordError, match=r"the id of several jobs begins with 11; jobs here:\n"):
        choice.find_job("11")
    with pytest.raises(RecordError, match=r"no file, folder or job has the name 9"):
        choice.find_job("9")
    with pytest.raises(RecordError, match="no rank of it has come to init yet"):
        choice.find_records(choice.find_job("11again"))


@pytest.mark.parametrize("width", [80, 160, 1000])
def test_the_list_of_jobs_keeps_to_the_terminal(width: int) -> None:
    program, folder = "python train.py --data " + "d" * 60, "/jobs/" + "f" * 60 + "/mnist"
    row = JobRow(id_at(1), "hangs", 8, 0.0, program, folder)
    rows = [row, replace(row, program="a", folder="/b")]
    file = io.StringIO()
    Console(file=file, width=width).print(make_table(rows, 600.0))
    head, *lines = file.getvalue().splitlines()
    at = head.index("folder")
    assert lines[0].split()[:5] == ["111111", "hangs", "8", "10", "min"]
    assert "python" in lines[0] and lines[-1].index("/b") == at
    assert "".join(line[at:].strip() for line in lines[:-1]) == folder
    assert max(map(len, lines)) <= width
    assert width < 1000 or program in lines[0]
