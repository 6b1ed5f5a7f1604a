"""The records of one `tfring run`, without ranks."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launcher_tools import environment
from made_records import write_record

from tfring.observe.commands import explain as command
from tfring.observe.explain.launched import RECORD_DIR, RunRecords
from tfring.observe.recorder import catalog, layout, places
from tfring.observe.recorder.reader import RecordError


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where records are made."""
    monkeypatch.setattr(places, "MEMORY", tmp_path)
    return places.default_folder()


JOB = "0123456789abcdef"


def write_job(base: Path, started: int) -> Path:
    left = layout.RankState.LEFT
    path = base / f"{JOB}-0123456789ab" / "rank-0.record"
    return write_record(path, 0, 1, state=left, started_wall=started, job=path.parent.name)


@pytest.mark.parametrize("succeeded", [True, False])
def test_records_go_after_a_success_and_stay_after_a_failure(base: Path, succeeded: bool) -> None:
    with RunRecords({}) as records:
        records.begin(JOB, ["train"])
        assert records.nobody_joined()
        file = write_job(base, time.time_ns())
        assert [one.path for one in records.job.records.values()] == [file]
        assert records.job.job == JOB and not records.nobody_joined()
        assert records.explanation() is None  # it has ended well
        records.succeeded = succeeded
    assert file.exists() != succeeded
    entry = catalog.find_note(JOB)
    assert entry is not None and entry.end["state"] == ("ended" if succeeded else "failed")
    # Of records that go, the report stays.
    assert entry.end["report"].get("size") == (1 if succeeded else None)
    assert not succeeded or entry.end["report"]["text"].startswith("Job 012345: 1 rank\n")


def test_where_ranks_cannot_write_records_nobody_knows_who_has_joined(
    base: Path, tmp_path: Path
) -> None:
    for folder, known in ((tmp_path / "new" / "one", True), (Path("/proc/none"), False)):
        with RunRecords({RECORD_DIR: str(folder)}) as records:
            records.begin(JOB, ["train"])
            assert records.nobody_joined() == known


def test_a_folder_of_the_user_stays_and_earlier_runs_in_it_are_not_ours(
    base: Path, tmp_path: Path
) -> None:
    earlier = write_job(tmp_path / "mine", 1)
    with RunRecords({RECORD_DIR: str(tmp_path / "mine")}) as records:
        records.begin(JOB, ["train"])
        with pytest.raises(RecordError, match="no rank of job 012345 has left a record"):
            _ = records.job
        records.succeeded = True
    assert earlier.exists() and not places.jobs(base)


def test_a_report_of_a_run_without_records_says_so(tmp_path: Path) -> None:
    here = environment(**{RECORD_DIR: str(tmp_path / "mine")})
    command = [sys.executable, "-m", "tfring", "run", "-np", "1", "--report", sys.executable]
    done = subprocess.run(
        [*command, "-c", "print('done')"], env=here, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"
    assert "has no records on this host" in done.stderr


def test_ranks_that_the_launcher_has_ended_are_no_reason(base: Path) -> None:
    with RunRecords({}) as records:
        records.begin(JOB, ["train"])
        folder = base / f"{JOB}-0123456789ab"
        running = layout.RankState.RUNNING
        for rank, state in ((0, running), (1, layout.RankState.FAILED)):
            path = folder / f"rank-{rank}.record"
            write_record(path, rank, 2, state=state, started_wall=time.time_ns(), pid=2**22 + 1)
        for found in (records.explanation(), records.explanation([1])):
            assert found is not None and "Rank 0" in found.what
        assert records.explanation([0]) is None
        records.succeeded = True


def test_a_mistake_in_a_rule_changes_no_exit_code(
    base: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(given: object) -> None:
        raise LookupError(f"planted in {given}")

    monkeypatch.setattr("tfring.observe.explain.explain.explain_job", fails)
    with RunRecords({}) as records:
        records.begin(JOB, ["train"])
        write_job(base, time.time_ns())
        assert records.explanation() is None
        assert "LookupError: planted in" in caplog.text
        records.succeeded = True


def test_what_the_launcher_said_comes_before_the_records(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with RunRecords({}) as records:
        records.begin(JOB, ["train"])
        path = base / f"{JOB}-0123456789ab" / "rank-0.record"
        running = layout.RankState.RUNNING
        write_record(path, state=running, started_wall=time.time_ns(), job=path.parent.name)
        records.tell("Rank 0 was killed: out of memory.")
    command.run(argparse.Namespace(job=[JOB], json=False))
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("Job 012345: Rank 0 was killed: out of memory. Its records: ")
