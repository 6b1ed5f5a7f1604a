"""Where records go, which of them stay, and which folders are not used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from made_records import write_record

from tfring.observe.recorder import catalog, keeping, places
from tfring.observe.recorder.layout import EventType, RankState


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(places, "MEMORY", tmp_path / "default")
    (tmp_path / "default").mkdir()
    return places.default_folder()


def job_of(base: Path, name: str, age: int, **header: object) -> Path:
    folder = base / name
    write_record(folder / "rank-0.record", **header)
    os.utime(folder, (1_000_000 - age, 1_000_000 - age))
    return folder


def test_the_folder_is_the_users_alone(base: Path) -> None:
    options = keeping.record_options("job-1", 3, 1, None, True)
    assert options["path"] == str(base / "job-1/rank-3.record")
    assert "keep" not in options  # several ranks need it until the last of them has left
    assert keeping.record_options("job-1", 3, 4, None, True)["keep"] == "1"
    assert base.stat().st_mode & 0o777 == 0o700
    assert (base / "job-1").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("folder", "job", "shown"),
    [
        ("17a404593f97aaac-3a68c4df0904", "17a404593f97aaac", "17a404"),
        ("3a68c4df0904", "3a68c4df0904", "3a68c4"),
        ("ray-17a404593f97aaac-3a68c4df0904", "ray-17a404593f97aaac", "ray-17a404"),
        ("4711.0-3a68c4df0904", "4711.0", "4711.0"),
        ("my-job-3a68c4df0904", "my-job", "my-job"),
    ],
)
def test_a_folder_has_the_id_of_its_job(folder: str, job: str, shown: str) -> None:
    assert places.id_of(folder) == job and places.short(job) == shown


def test_a_given_folder_keeps_its_records(base: Path, tmp_path: Path) -> None:
    for i in range(6):
        job_of(tmp_path / "given", f"old-{i}", i)
    options = keeping.record_options("job-1", 0, 1, str(tmp_path / "given"), True)
    assert options["path"] == str(tmp_path / "given/job-1/rank-0.record")
    assert options["keep"] == "1"
    assert len(places.jobs(tmp_path / "given")) == 6
    assert [entry.records for entry in catalog.read_notes()] == [str(tmp_path / "given")]
    assert not places.jobs(base)


def test_three_jobs_that_are_over_stay(base: Path) -> None:
    for i in range(5):
        job_of(base, f"over-{i}", i)
    job_of(base, "runs", 10, pid=os.getpid())
    job_of(base, "in another container", 11, pid_space=1, awake=2**62)
    job_of(base, "left by another container", 12, pid_space=1, awake=-(2**60))
    job_of(base, "before the machine started", 13, boot="another")
    keeping.record_options("job-1", 1, 1, None, False)
    assert len(places.jobs()) == 9  # only the first rank of a host throws away
    keeping.record_options("job-1", 0, 1, None, True)
    left = [folder.name for folder in places.jobs()]
    assert left == ["over-0", "over-1", "over-2", "runs", "in another container"]


def test_empty_folders_of_jobs_that_never_started_go(base: Path) -> None:
    for name in ("failed to start", "starts now"):
        (base / name).mkdir(parents=True)
    os.utime(base / "failed to start", (1_000_000, 1_000_000))
    keeping.record_options("job-1", 0, 1, None, True)
    assert sorted(path.name for path in base.iterdir()) == ["job-1", "job-1.job", "starts now"]


def test_a_launcher_keeps_the_records_of_its_job_until_it_ends(base: Path) -> None:
    catalog.note_begin("run", ["train"], base, launched=True)
    left, failed, here = RankState.LEFT, RankState.FAILED, os.getpid()
    shutdown = [{"number": 1, "type": EventType.SHUTDOWN}]
    name = "run-00000000000{}".format
    job_of(base, name(1), 1, pid=here, state=failed, events=shutdown)
    for i in range(2, 5):
        job_of(base, name(i), i, pid=here, state=left)
    job_of(base, name(5), 5, pid=here, state=failed)
    job_of(base, name(6), 6, pid=here)
    for i in range(5):
        job_of(base, f"over-{i}", i)
    options = keeping.record_options("another", 0, 1, None, True)
    assert "keep" not in options and len(places.jobs()) == 6 + 3  # those of the run are its own
    options = keeping.record_options(name(7), 0, 1, None, True)
    assert options["keep"] == "1"
    of_run = [folder.name for folder in places.jobs() if folder.name.startswith("run-")]
    assert of_run == [name(1), name(5), name(6)]  # of what is over, one
    catalog.note_end("run", "failed", "", {})
    keeping.throw_away("")
    keeping.remove_job("run")
    of_run = [folder.name for folder in places.jobs() if folder.name.startswith("run-")]
    assert of_run == [name(5), name(6)]  # a rank is still there


def test_what_is_known_of_a_job_stays_for_a_day_and_of_fifty(base: Path) -> None:
    catalog.note_begin("runs", ["train"], base, launched=True)
    for i in range(60):
        catalog.note_begin(f"over-{i}", ["train"], base, launched=True)
        catalog.note_end(f"over-{i}", "ended", "", {})
    file = base / "over-59.job"
    known = json.loads(file.read_text())
    known["end"]["time"] -= 25 * 3600
    file.write_text(json.dumps(known))
    (base / "torn.job").write_text("{")
    catalog.remove_old()
    left = {entry.job for entry in catalog.read_notes()}
    assert "runs" in left and "over-59" not in left and "over-58" in left and len(left) == 50


def test_a_job_is_noted_by_one_process_and_its_end_by_the_same(base: Path) -> None:
    catalog.note_begin("a", ["train", "-x"], base, launched=True)
    program = "import sys; from pathlib import Path\n"
    program += "from tfring.observe.recorder import catalog, places\n"
    program += "places.MEMORY = Path(sys.argv[1])\n"
    program += "catalog.note_begin('a', ['other'], Path('/'), launched=False)\n"
    program += "catalog.note_end('a', 'failed', 'wrong', {})\n"
    subprocess.run([sys.executable, "-c", program, base.parent], check=True, timeout=60)
    entry = catalog.find_note("a")
    assert entry is not None and entry.command == ["train", "-x"] and entry.lives
    assert entry.folder == os.getcwd() and entry.records == str(base)
    catalog.note_end("a", "ended", "", {})
    entry = catalog.find_note("a")
    assert entry is not None and entry.end["state"] == "ended" and not entry.lives


def test_a_folder_of_somebody_else_is_not_used(
    base: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    theirs = base.with_name("tfring-54321")
    theirs.mkdir()
    with monkeypatch.context() as other:
        other.setattr(os, "getuid", lambda: 54321)
        assert "path" not in keeping.record_options("job-1", 0, 1, None, True)
        assert places.jobs() == []
    theirs.rmdir()  # nothing was put into it
    assert "rank 0 keeps its record in its own memory" in caplog.text
    assert f"{theirs} belongs to another user. Set TFRING_RECORD_DIR" in caplog.text
    target = tmp_path / "elsewhere"
    target.mkdir()
    base.symlink_to(target)
    assert "path" not in keeping.record_options("job-1", 0, 1, None, True)
    assert not any(target.iterdir())


def test_a_folder_that_others_can_read_is_closed(base: Path) -> None:
    base.mkdir(mode=0o777)
    base.chmod(0o777)
    assert "path" in keeping.record_options("job-1", 0, 1, None, True)
    assert base.stat().st_mode & 0o777 == 0o700


def test_without_shared_memory_there_is_a_file_only_where_one_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not on the disk of temporary files: a rank would wait for it."""
    monkeypatch.setattr(places, "MEMORY", tmp_path / "missing", raising=False)
    assert "path" not in keeping.record_options("job-1", 0, 1, None, True)
    assert "in its own memory" in caplog.text and "Set TFRING_RECORD_DIR" in caplog.text
    assert not (tmp_path / "missing").exists()
    given = tmp_path / "a" / "given"
    assert keeping.record_options("job-1", 0, 1, str(given), True)["path"].startswith(str(given))


def test_where_nothing_can_be_made_the_record_is_in_memory(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    options = keeping.record_options("job-1", 0, 1, str(file), True)
    assert "path" not in options and options["job"] == "job-1"
