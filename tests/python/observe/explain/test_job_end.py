"""The end of jobs without a launcher: the last rank of the host notes it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from launcher_tools import mpirun, write_script
from made_records import write_record

from tfring.observe.explain.job_end import note_end
from tfring.observe.recorder import catalog, places
from tfring.observe.recorder.layout import EventType, RankState

native = pytest.importorskip("tfring.runtime._native")

JOB = "0123456789abcdef"
LEFT = {"state": RankState.LEFT}
FAILED = {"state": RankState.FAILED, "events": [{"number": 1, "type": EventType.SHUTDOWN}]}


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(places, "MEMORY", tmp_path / "default")
    (tmp_path / "default").mkdir()
    return places.default_folder()


def write_job(base: Path, *ranks: dict[str, object], launched: bool = False) -> Path:
    """Ranks whose processes are there."""
    catalog.note_begin(JOB, ["train"], base, launched=launched)
    folder = base / f"{JOB}-0123456789ab"
    for rank, how in enumerate(ranks):
        head = {"pid": os.getpid(), "job": folder.name, **how}
        write_record(folder / f"rank-{rank}.record", rank, len(ranks), **head)
    return folder


def end() -> dict[str, object]:
    entry = catalog.find_note(JOB)
    assert entry is not None
    return entry.end


def test_the_last_rank_keeps_the_report_and_removes_the_records(base: Path) -> None:
    folder = write_job(base, LEFT, {})
    note_end(folder, stays=False)
    assert not end() and folder.exists()  # rank 1 has not left
    write_record(folder / "rank-1.record", 1, 2, pid=os.getpid(), job=folder.name, **LEFT)
    note_end(folder, stays=False)
    found = end()
    assert found["state"] == "ended" and not folder.exists()
    assert found["report"]["text"].startswith("Job 012345: 2 ranks\n")
    note_end(folder, stays=False)  # of another rank that has left at the same time
    assert end() == found


@pytest.mark.parametrize("other", [FAILED, {"pid": 4194304}])
def test_the_records_of_a_job_that_failed_stay(base: Path, other: dict[str, object]) -> None:
    folder = write_job(base, LEFT, other)
    note_end(folder, stays=False)
    assert end()["state"] == "failed" and not end()["report"]
    assert len(places.record_files(folder)) == 2


def test_records_in_a_folder_of_the_user_stay(base: Path, tmp_path: Path) -> None:
    catalog.note_begin(JOB, ["train"], tmp_path / "mine", launched=False)
    folder = write_job(tmp_path / "mine", LEFT)
    note_end(folder, stays=True)
    assert end()["state"] == "ended"
    assert [path.name for path in folder.iterdir()] == ["rank-0.record"]


def test_a_launcher_of_this_host_notes_the_end_itself(base: Path) -> None:
    folder = write_job(base, LEFT, launched=True)
    note_end(folder, stays=False)
    assert not end() and folder.exists()


RANKS = """
    import sys, time
    from pathlib import Path
    import numpy as np
    from tfring.runtime import topology
    from tfring import world
    from tfring.runtime._native import core
    from tfring.observe.recorder import places

    places.MEMORY = Path(sys.argv[1])
    world.init()
    for step in range(30):
        core.mark_step(step, step)
        core.allreduce(np.ones(4, np.float32), name="tfring.optimizer.0.0.0", op=1)
    if topology.rank() == 0:
        time.sleep(1)
"""


def test_a_job_of_mpirun_is_known_after_its_end(base: Path, tmp_path: Path) -> None:
    done = mpirun(2, write_script(tmp_path, RANKS), str(base.parent))
    assert done.returncode == 0, done.stderr
    (entry,) = catalog.read_notes()
    assert entry.end["state"] == "ended" and not places.jobs()
    # It has the rank that has left long before, too.
    assert entry.end["report"]["text"].splitlines()[0].endswith(": 2 ranks")
