"""Several jobs in one folder: each generation has one owner, and only it removes its files."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tfring.checkpoint import Checkpointer, CheckpointTimeoutError, FencedError
from tfring.checkpoint.folders import LocalFolder


def state(step: int) -> dict[str, np.ndarray]:
    return {"w": np.full(2000, step)}


def test_two_jobs_that_begin_together_damage_nothing(tmp_path: Path) -> None:
    """A job that was submitted twice, or is queued again while it still runs."""
    failures: list[Exception] = []
    begin = threading.Barrier(2)

    def job(name: int) -> None:
        checkpoints = Checkpointer(tmp_path, asynchronous=False, keep_last=2)
        begin.wait(60)
        try:
            for step in range(40):
                checkpoints.save(state(step), step, metadata={"job": name})
        except Exception as error:
            failures.append(error)

    jobs = [threading.Thread(target=job, args=(name,)) for name in range(2)]
    for each in jobs:
        each.start()
    for each in jobs:
        each.join()
    assert [type(failure) for failure in failures] in ([], [FencedError])
    found = Checkpointer(tmp_path).all()
    for info in found:
        assert Checkpointer(tmp_path).load(info.name) is not None
    # The job that reserved last has published all, and wins.
    assert [info.order for info in found][-2:] == [(1, 38), (1, 39)]
    assert len({info.metadata["job"] for info in found if info.generation == 1}) == 1


def test_a_generation_is_reserved_by_one(tmp_path: Path) -> None:
    reserved: list[int] = []
    begin = threading.Barrier(8)

    def reserve() -> None:
        checkpoints = Checkpointer(tmp_path)
        begin.wait(60)
        reserved.append(checkpoints.reserve())

    threads = [threading.Thread(target=reserve) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(reserved) == list(range(8))
    content = json.loads((tmp_path / "g00007.owner").read_text())
    assert content["pid"] == os.getpid()
    assert set(content) == {"owner", "host", "pid", "created"}


def test_the_generation_of_another_is_left_alone(tmp_path: Path) -> None:
    """Two jobs name the same generation: neither removes files of the other."""
    first, second = (Checkpointer(tmp_path, asynchronous=False, keep_last=1) for _ in range(2))
    first.save(state(1), 1, 5)
    before = {path.name for path in tmp_path.iterdir()}
    theirs = tmp_path / f"g00005-s000000009-{'ab' * 8}.npz.0a1b.tmp"
    older = tmp_path / f"g00004-s000000009-{'ab' * 8}.npz"
    for path in (theirs, older):
        path.touch()
    second.save(state(2), 2, 5)
    second.save(state(3), 3, 5)
    assert {info.step for info in second.all()} == {1, 3}
    assert theirs.exists() and not older.exists()
    assert before <= {path.name for path in tmp_path.iterdir()}


def test_a_generation_can_be_reserved_on_a_full_disk(tmp_path: Path) -> None:
    """The file of a killed writer may fill it; it goes when this generation writes."""

    class Full(LocalFolder):
        def create(self, name: str, content: bytes) -> bool:
            if content:
                raise OSError(28, "No space left on device")
            return super().create(name, content)

    checkpoints = Checkpointer(tmp_path)
    checkpoints._files.folder = Full(str(tmp_path))
    assert checkpoints.reserve() == 0


class Lease:
    """The lease of a process that is delayed while it writes."""

    def __init__(self) -> None:
        self.asked, self.goes_on = threading.Event(), threading.Event()

    def __call__(self) -> bool:
        self.asked.set()
        return self.goes_on.wait(60)


def test_what_was_given_up_is_no_error_when_it_is_fenced(tmp_path: Path) -> None:
    """A rank that does not see the folder in the next generation writes nothing more."""
    lease = Lease()
    with Checkpointer(tmp_path, lease_check=lease) as slow:
        slow.save(state(1), 1, 0)
        assert lease.asked.wait(60)
        slow.give_up()
        assert slow.save(state(2), 2, 0) is None, "nobody waits for it"
        Checkpointer(tmp_path, asynchronous=False).save(state(2), 2, 1)
        lease.goes_on.set()
        slow.make_room()
        slow.raise_failure()
        assert [info.order for info in slow.all()] == [(1, 2)]


def test_a_storage_that_never_answers_is_an_error_after_the_timeout(tmp_path: Path) -> None:
    """It reports no failure, so all checkpoints would be skipped for ever."""
    lease = Lease()
    checkpoints = Checkpointer(tmp_path, lease_check=lease, timeout=0.5)
    checkpoints.save(state(1), 1, 0)
    assert lease.asked.wait(60)
    with pytest.raises(CheckpointTimeoutError, match="does not answer"):
        while checkpoints.save(state(2), 2, 0) is None:
            time.sleep(0.01)
    lease.goes_on.set()
    checkpoints.wait(60)
    assert [info.order for info in checkpoints.all()] == [(0, 1)]
