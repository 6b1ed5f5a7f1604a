"""Where records go, which of them stay, and whose folder is not used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from made_records import write_record

from tfring.recorder import places
from tfring.recorder.layout import EventType, RankState


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "default"
    monkeypatch.setattr(places, "_places", lambda: (folder, tmp_path / "nobody" / "tfring"))
    return folder


def job_of(base: Path, name: str, age: int, **header: object) -> Path:
    folder = base / name
    write_record(folder / "rank-0.record", **header)
    os.utime(folder, (1_000_000 - age, 1_000_000 - age))
    return folder


def test_the_folder_is_the_users_alone(base: Path) -> None:
    options = places.record_options("job-1", 3, None, True)
    assert options["path"] == str(base / "job-1/rank-3.record")
    assert "keep" not in options
    assert base.stat().st_mode & 0o777 == 0o700
    assert (base / "job-1").stat().st_mode & 0o777 == 0o700


def test_a_given_folder_keeps_its_records(base: Path, tmp_path: Path) -> None:
    for i in range(6):
        job_of(tmp_path / "given", f"old-{i}", i)
    options = places.record_options("job-1", 0, str(tmp_path / "given"), True)
    assert options["path"] == str(tmp_path / "given/job-1/rank-0.record")
    assert options["keep"] == "1"
    assert len(places.jobs(tmp_path / "given")) == 6
    assert not base.exists()


def test_three_jobs_that_are_over_stay(base: Path) -> None:
    for i in range(5):
        job_of(base, f"over-{i}", i)
    job_of(base, "runs", 10, pid=os.getpid())
    job_of(base, "in another container", 11, pid_space=1, awake=2**62)
    job_of(base, "left by another container", 12, pid_space=1, awake=-(2**60))
    job_of(base, "before the machine started", 13, boot="another")
    places.record_options("job-1", 1, None, False)
    assert len(places.jobs()) == 9  # only the first rank of a host throws away
    places.record_options("job-1", 0, None, True)
    left = [folder.name for folder in places.jobs()]
    assert left == ["over-0", "over-1", "over-2", "runs", "in another container"]


def test_empty_folders_of_jobs_that_never_started_go(base: Path) -> None:
    for name in ("failed to start", "starts now"):
        (base / name).mkdir(parents=True)
    os.utime(base / "failed to start", (1_000_000, 1_000_000))
    places.record_options("job-1", 0, None, True)
    assert sorted(folder.name for folder in base.iterdir()) == ["job-1", "starts now"]


def test_of_the_jobs_of_one_run_the_last_stays(base: Path) -> None:
    run = places.make_run_folder()
    assert run is not None
    left, failed = RankState.LEFT, RankState.FAILED
    here = os.getpid()
    shutdown = [{"number": 1, "type": EventType.SHUTDOWN}]
    job_of(run, "has failed", 1, pid=here, state=failed, events=shutdown)
    for i in range(2, 5):
        job_of(run, f"ended well {i}", i, pid=here, state=left)
    job_of(run, "fails", 5, pid=here, state=failed)
    job_of(run, "of another set of ranks", 6, pid=here)
    options = places.record_options("new", 0, str(run), True)
    assert options["keep"] == "1"
    names = [folder.name for folder in places.jobs(run)]
    assert names == ["has failed", "fails", "of another set of ranks"]


def test_a_run_keeps_its_records_until_it_ends(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = places.make_run_folder()
    assert run is not None
    job_of(run, "has ended", 10)
    empty = places.make_run_folder()
    assert empty is not None
    for i in range(5):
        job_of(base, f"over-{i}", i)
    places.record_options("job-1", 0, None, True)
    assert [folder.name for folder in places.jobs(run)] == ["has ended"] and empty.is_dir()
    # As its launcher's process is gone.
    gone = run.rename(base / "run-999999999-x")
    empty.rename(base / "run-999999999-y")
    places.record_options("job-1", 0, None, True)
    assert not gone.exists() and not (base / "run-999999999-y").exists()


def test_a_folder_of_somebody_else_is_not_used(
    base: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    base.mkdir()
    with monkeypatch.context() as other:
        other.setattr(os, "getuid", lambda: 54321)
        assert "path" not in places.record_options("job-1", 0, None, True)
    base.rmdir()  # nothing was put into it
    assert "rank 0 keeps its record in its own memory" in caplog.text
    assert f"{base} belongs to somebody else. Set TFRING_RECORD_DIR" in caplog.text
    target = tmp_path / "elsewhere"
    target.mkdir()
    base.symlink_to(target)
    assert "path" not in places.record_options("job-1", 0, None, True)
    assert not any(target.iterdir())


def test_a_folder_that_others_can_read_is_closed(base: Path) -> None:
    base.mkdir(mode=0o777)
    base.chmod(0o777)
    assert "path" in places.record_options("job-1", 0, None, True)
    assert base.stat().st_mode & 0o777 == 0o700


def test_without_shared_memory_there_is_a_file_only_where_one_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not on the disk of temporary files: a rank would wait for it."""
    monkeypatch.setattr(places, "MEMORY", tmp_path / "missing", raising=False)
    assert places.make_run_folder() is None
    assert "path" not in places.record_options("job-1", 0, None, True)
    assert "in its own memory" in caplog.text and "Set TFRING_RECORD_DIR" in caplog.text
    assert not (tmp_path / "missing").exists()
    given = tmp_path / "a" / "given"
    assert places.record_options("job-1", 0, str(given), True)["path"].startswith(str(given))


def test_where_nothing_can_be_made_the_record_is_in_memory(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    options = places.record_options("job-1", 0, str(file), True)
    assert "path" not in options and options["job"] == "job-1"


def test_an_empty_folder_of_a_job_is_removed_at_its_end(base: Path) -> None:
    path = Path(places.record_options("job-1", 0, None, True)["path"])
    path.touch()
    places.end_job(str(path))
    assert path.exists()
    path.unlink()
    places.end_job(str(path))
    assert not path.parent.exists()


def test_a_folder_that_somebody_else_has_made_is_neither_written_nor_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "MEMORY", tmp_path / "shm")
    monkeypatch.setattr(places, "USERS", tmp_path / "run")
    theirs = tmp_path / "shm" / f"tfring-{os.getuid()}"
    (theirs / "feedbeef0000").mkdir(parents=True)
    write_record(theirs / "feedbeef0000" / "rank-0.record")
    assert len(places.jobs()) == 1
    own = os.getuid()
    monkeypatch.setattr(places.os, "getuid", lambda: own + 1)
    (tmp_path / "shm" / f"tfring-{own + 1}").symlink_to(theirs)
    assert places.jobs() == []
    if own == 0:
        private = tmp_path / "run" / "1"
        private.mkdir(parents=True)
        os.chown(private, 1, 1)
        assert places.default_folder() == private / "tfring"
