"""Failed storage costs at most one new checkpoint: no job, and no earlier checkpoint."""

from __future__ import annotations

import builtins
import errno
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfring.checkpoint import Checkpointer, CheckpointError, CheckpointTimeoutError

LIMIT = 60.0  # seconds of patience; working storage never takes as long
CALLS = ("replace", "fsync", "unlink", "stat", "scandir", "makedirs", "fstat", "open")


def state(step: int) -> dict[str, Any]:
    return {"w": np.full(3000, step), "b": bytes([step]) * 9}


def assert_newest(path: Any, step: int) -> None:
    found = Checkpointer(path).load()
    assert found is not None
    assert found.info.step == step
    assert (found.state["w"] == step).all() and found.state["b"] == state(step)["b"]


class Fault:
    """Fails once, at the n-th operation, or each time that `when` says so."""

    def __init__(self, code: int, n: int = 0, when: Callable[[str, Any], bool] | None = None):
        self._code, self._n, self._when = code, n, when
        self._lock = threading.Lock()
        self.count = 0

    def __call__(self, operation: str, where: Any = None) -> None:
        with self._lock:
            self.count += 1
            if self.count == self._n or (self._when is not None and self._when(operation, where)):
                raise OSError(self._code, os.strerror(self._code), str(where))


class FaultyFile:
    """A file whose reads and writes may fail halfway."""

    def __init__(self, file: Any, fault: Fault, where: str) -> None:
        self._file, self._fault, self._where = file, fault, where

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self._file.write(view[: len(view) // 2])
        self._fault("write", self._where)
        self._file.write(view[len(view) // 2 :])
        return len(view)

    def read(self, size: int = -1) -> bytes:
        self._fault("read", self._where)
        return bytes(self._file.read(size))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> FaultyFile:
        return self

    def __exit__(self, *_: Any) -> None:
        self._file.close()


def break_folder(patch: pytest.MonkeyPatch, folder: Path, fault: Fault) -> None:
    """Lets the operating system's calls on this folder fail."""

    def within(where: Any) -> bool:
        if isinstance(where, int):
            where = os.readlink(f"/proc/self/fd/{where}")
        return str(where).startswith(str(folder))

    def faulty(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(where: Any, *arguments: Any, **named: Any) -> Any:
            if within(where):
                fault(name, where)
            return real(where, *arguments, **named)

        return call

    for name in CALLS:
        patch.setattr(os, name, faulty(name, getattr(os, name)))
    real_open = builtins.open

    def open_file(path: Any, *arguments: Any, **named: Any) -> Any:
        if isinstance(path, int) or not within(path):
            return real_open(path, *arguments, **named)
        fault("open", path)
        return FaultyFile(real_open(path, *arguments, **named), fault, str(path))

    patch.setattr(builtins, "open", open_file)


def live(path: Any) -> None:
    """One run of a job: it goes on from the newest checkpoint, and saves two."""
    with Checkpointer(path, keep_last=1, timeout=LIMIT) as checkpoints:
        found = checkpoints.load()
        assert found is not None
        assert found.info.step == 3
        checkpoints.reserve()
        for step in (4, 5):
            checkpoints.save(state(step), step, must=True)
            checkpoints.wait()


def test_a_fault_at_every_operation_of_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # this tests faults, not time
    n, count = 0, 1
    while n < count:
        n += 1
        folder = tmp_path / str(n)
        with Checkpointer(folder) as before:
            before.save(state(3), 3)
        fault = Fault(errno.ENOSPC if n % 2 else errno.EIO, n)
        with monkeypatch.context() as patch:
            break_folder(patch, folder, fault)
            live(folder)
        count = fault.count
        assert_newest(folder, 5)
        # The next save repeats a clean-up that failed.
        with Checkpointer(folder, keep_last=1) as after:
            after.save(state(6), 6)
        assert len(list(folder.iterdir())) == 3, n
    assert count > 60


@pytest.fixture
def url() -> Iterator[str]:
    fsspec = pytest.importorskip("fsspec", reason="needs fsspec: pip install tfring[checkpoint]")
    place = f"memory://{uuid.uuid4().hex}/run"
    yield place
    storage, path = fsspec.core.url_to_fs(place)
    storage.rm(path, recursive=True)


def test_a_fault_at_every_operation_of_an_object_store(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = pytest.importorskip("fsspec").filesystem("memory")

    def faulty(name: str, fault: Fault) -> Callable[..., Any]:
        real = getattr(storage, name)

        def call(where: Any, *arguments: Any, **named: Any) -> Any:
            fault(name, where)
            found = real(where, *arguments, **named)
            return FaultyFile(found, fault, str(where)) if name == "open" else found

        return call

    n, count = 0, 1
    while n < count:
        n += 1
        place = f"{url}/{n}"
        with Checkpointer(place) as before:
            before.save(state(3), 3)
        fault = Fault(errno.EBUSY, n)
        with monkeypatch.context() as patch:
            for name in ("ls", "info", "cat_file", "rm_file", "makedirs", "exists", "open"):
                patch.setattr(storage, name, faulty(name, fault))
            live(place)
        count = fault.count
        assert_newest(place, 5)
    assert count > 40


@pytest.mark.parametrize("suffix", [".json", ".npz"])
def test_an_unreadable_newest_one_falls_back_with_a_warning(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    suffix: str,
) -> None:
    code = errno.EACCES
    with Checkpointer(tmp_path) as checkpoints:
        for step in (3, 4):
            checkpoints.save(state(step), step, must=True)
    with monkeypatch.context() as patch:
        newest = Fault(code, when=lambda o, w: o == "open" and "s000000004" in w and suffix in w)
        break_folder(patch, tmp_path, newest)
        assert_newest(tmp_path, 3)
        assert f"g00000-s000000004.json: {type(OSError(code, '')).__name__}" in caplog.text
        # The next job goes on from there, and its generation is the newest.
        assert Checkpointer(tmp_path).reserve() == 1
        broken = Fault(code, when=lambda o, w: o == "open" and suffix in w)
        break_folder(patch, tmp_path, broken)
        with pytest.raises(CheckpointError, match="none of them is valid"):
            Checkpointer(tmp_path).load()
    assert_newest(tmp_path, 4)


class Quota:
    """A disk of limited size."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path, size: int) -> None:
        real = os.fsync

        def sync(descriptor: int) -> None:
            used = sum(path.stat().st_size for path in folder.iterdir())
            if used > size:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            real(descriptor)

        patch.setattr(os, "fsync", sync)


@pytest.mark.parametrize("mistake", [KeyError, AttributeError])
def test_a_mistake_in_what_reads_takes_no_older_one(tmp_path: Path, mistake: Any) -> None:
    """And nothing is retried."""
    checkpoints = Checkpointer(tmp_path, asynchronous=False)
    for step in (1, 2):
        checkpoints.save(state(step), step)
    used = []

    def use(info: Any) -> None:
        used.append(info.step)
        raise mistake("weights")

    with pytest.raises(mistake, match="weights"):
        checkpoints.newest(use)
    assert used == [2]


def test_a_full_disk_keeps_the_newest_that_can_be_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Checkpointer(tmp_path, keep_last=3) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(state(step), step, must=True)
    (path,) = tmp_path.glob("*s000000003*.npz")
    path.write_bytes(path.read_bytes()[:-2000] + bytes(2000))
    Quota(monkeypatch, tmp_path, 10)
    with (
        pytest.raises(OSError, match="No space left"),
        Checkpointer(tmp_path, keep_last=1, timeout=0) as checkpoints,
    ):
        checkpoints.save(state(4), 4)
        checkpoints.wait(LIMIT)
    assert_newest(tmp_path, 2)


def test_the_newest_one_takes_the_place_of_one_that_waits_for_its_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tfring.checkpoint.retries.FIRST_DELAY", 1000.0)
    failed = threading.Event()
    fails = True

    def lease() -> bool:
        if fails:
            failed.set()
            raise OSError(errno.EHOSTUNREACH, "No route to host")
        return True

    with Checkpointer(tmp_path, lease_check=lease, timeout=LIMIT) as checkpoints:
        checkpoints.save(state(1), 1)
        assert failed.wait(LIMIT)
        while checkpoints.busy:
            pass
        with pytest.raises(
            CheckpointTimeoutError, match="1 attempts failed, the last one with OSE"
        ):
            checkpoints.wait(0.01)
        fails = False
        assert checkpoints.save(state(2), 2) is not None
        checkpoints.wait()
        assert [info.step for info in checkpoints.all()] == [2]
    assert checkpoints.skipped == 0
    for text in ("g00000-s000000001 is given up", "s000000002 is written to"):
        assert text in caplog.text


def test_it_is_an_error_when_nothing_could_be_written_for_long(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def lease() -> bool:
        raise OSError(errno.EHOSTUNREACH, "No route to host")

    with Checkpointer(tmp_path, lease_check=lease, timeout=0.2) as checkpoints:
        checkpoints.save(state(1), 1)
        with pytest.raises(OSError, match="No route to host"):
            checkpoints.wait(LIMIT)
        checkpoints.wait()  # it is raised once
    assert "It is tried again" in caplog.text
    assert "an error" in caplog.text
