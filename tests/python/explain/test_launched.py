"""The folder of the records of one `tfring run`, without ranks."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from launcher_tools import environment
from made_records import write_record

from tfring.explain import launched
from tfring.explain.launched import RECORD_DIR, RunRecords
from tfring.recorder import layout, places
from tfring.recorder.reader import RecordError


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the folders of runs are made."""
    monkeypatch.setattr(
        places, "_places", lambda: (tmp_path / "tfring", tmp_path / "nobody" / "tfring")
    )
    return tmp_path / "tfring"


def write_job(folder: str | Path, started: int) -> Path:
    job = Path(folder) / "planted"
    job.mkdir(parents=True)
    left = layout.RankState.LEFT
    return write_record(job / "rank-0.record", 0, 1, state=left, started_wall=started)


@pytest.mark.parametrize("succeeded", [True, False])
def test_our_own_folder_goes_after_a_success_and_stays_after_a_failure(succeeded: bool) -> None:
    with RunRecords({}) as records:
        file = write_job(records.variables[RECORD_DIR], time.time_ns())
        assert [one.path for one in records.job().records.values()] == [file]
        assert records.explanation() == ""  # it has ended well
        records.succeeded = succeeded
    assert file.exists() != succeeded
    assert file.parents[1].exists() != succeeded


def test_an_empty_folder_goes_also_after_an_exception(base: Path) -> None:
    with pytest.raises(KeyboardInterrupt), RunRecords({}):
        raise KeyboardInterrupt
    assert list(base.iterdir()) == []


def test_a_folder_of_the_user_stays_and_earlier_runs_in_it_are_not_ours(tmp_path: Path) -> None:
    earlier = write_job(tmp_path / "mine", time.time_ns())
    with RunRecords({RECORD_DIR: str(tmp_path / "mine")}) as records:
        assert records.variables == {RECORD_DIR: str(tmp_path / "mine")}
        with pytest.raises(RecordError, match="no rank has left a record"):
            records.job()
        records.succeeded = True
    assert earlier.exists()


def test_a_run_that_a_rank_starts_has_a_folder_of_its_own() -> None:
    with RunRecords({}) as outer, RunRecords(outer.variables) as inner:
        assert inner.variables != outer.variables
        outer.succeeded = inner.succeeded = True


def test_a_report_of_a_run_without_records_says_so(tmp_path: Path) -> None:
    here = environment(**{RECORD_DIR: str(tmp_path / "mine")})
    command = [sys.executable, "-m", "tfring", "run", "-np", "1", "--report", sys.executable]
    done = subprocess.run(
        [*command, "-c", "print('done')"], env=here, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "[0]<stdout>:done" in done.stdout
    assert "tfring run: no report: no rank has left a record in" in done.stderr


def test_ranks_that_the_launcher_has_ended_are_no_reason() -> None:
    with RunRecords({}) as records:
        folder = Path(records.variables[RECORD_DIR]) / "planted"
        folder.mkdir(parents=True)
        running = layout.RankState.RUNNING
        for rank, state in ((0, running), (1, layout.RankState.FAILED)):
            path = folder / f"rank-{rank}.record"
            write_record(path, rank, 2, state=state, started_wall=time.time_ns(), pid=2**22 + 1)
        assert "Rank 0" in records.explanation()
        assert "Rank 0" in records.explanation([1])
        assert records.explanation([0]) == ""
        records.succeeded = True


def test_a_mistake_in_a_rule_changes_no_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(given: object) -> None:
        raise LookupError(f"planted in {given}")

    monkeypatch.setattr(launched, "explain_now", fails)
    with RunRecords({}) as records:
        write_job(records.variables[RECORD_DIR], time.time_ns())
        assert records.explanation().startswith("there is no explanation: LookupError: planted in")
        records.succeeded = True
