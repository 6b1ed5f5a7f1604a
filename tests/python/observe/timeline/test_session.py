"""A timeline of this process: what happens while its file is being made."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tfring.runtime._native")

import tfring
from tfring.observe.recorder.own import own_path
from tfring.observe.timeline import session
from tfring.observe.timeline.merge import make_file

LIMIT = 60.0


class SlowFile:
    """Makes the file of a timeline when the test says so, as if other ranks were late."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.may_go_on = threading.Event(), threading.Event()
        monkeypatch.setattr(session, "make_file", self._make)

    def _make(self, path: Path, header: dict[str, Any]) -> None:
        self.begun.set()
        assert self.may_go_on.wait(LIMIT)
        make_file(path, header)


def shut_down_slowly(monkeypatch: pytest.MonkeyPatch, act: Callable[[SlowFile], None]) -> None:
    """Shuts down on another thread; `act` is called while the file is being made."""
    file = SlowFile(monkeypatch)
    with ThreadPoolExecutor(1) as pool:
        leaving = pool.submit(tfring.shutdown)
        try:
            assert file.begun.wait(LIMIT)
            act(file)
        finally:
            file.may_go_on.set()
            tfring.shutdown()
        leaving.result(LIMIT)


def test_init_need_not_wait_for_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def begin_again(file: SlowFile) -> None:
        tfring.init()
        tfring.start_timeline(tmp_path / "second.json")
        assert not file.may_go_on.is_set() and not (tmp_path / "first.json").exists()

    tfring.init()
    tfring.start_timeline(tmp_path / "first.json")
    shut_down_slowly(monkeypatch, begin_again)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first.json", "second.json"]


def test_the_next_timeline_of_that_name_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "job.json"

    def begin_again(file: SlowFile) -> None:
        tfring.init()
        starting = threading.Thread(target=tfring.start_timeline, args=[path])
        starting.start()
        starting.join(0.2)  # long enough for one that does not wait
        waits = starting.is_alive()
        file.may_go_on.set()
        starting.join(LIMIT)
        assert waits

    tfring.init()
    tfring.start_timeline(path)
    shut_down_slowly(monkeypatch, begin_again)
    assert [file.name for file in tmp_path.iterdir()] == ["job.json"]


def test_a_device_is_refused_on_every_rank(tmp_path: Path) -> None:
    pipe = tmp_path / "job.json"
    os.mkfifo(pipe)
    tfring.init()
    record = own_path()
    assert record is not None
    try:
        for rank in range(2):
            here = session._Here(rank, rank, 1)
            with pytest.raises(FileExistsError, match=r"job\.json is no regular file"):
                session._Session(pipe, here, record)
    finally:
        tfring.shutdown()
    assert list(tmp_path.iterdir()) == [pipe] and pipe.is_fifo()
