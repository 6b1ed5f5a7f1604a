"""A job can be explained while the interpreter ends, when some of Python is over already."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from made_records import write_record
from store_tools import ROOT

from tfring.observe.recorder.job import load_job
from tfring.observe.recorder.stacks import take_stacks

AT_EXIT = """
import atexit, os, pathlib, sys
from made_records import write_record
from tfring.observe.recorder.job import load_job
from tfring.observe.recorder.stacks import take_stacks

for rank in range(2):
    write_record(pathlib.Path(sys.argv[1], f"rank-{rank}.record"), rank, 2, pid=os.getpid())
records = load_job([sys.argv[1]]).records
atexit.register(lambda: print(*take_stacks(records, 2.0).items(), sep="\\n"))
"""


def test_ranks_are_asked_when_the_interpreter_ends(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", AT_EXIT, str(tmp_path)],
        env={"PYTHONPATH": f"{ROOT}:{ROOT}/tests/helpers"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    first, second = done.stdout.splitlines()
    assert first.startswith("(0, 'no stacks: TFRING_STACKS is 0 there")
    assert second.startswith("(1, 'no stacks: TFRING_STACKS is 0 there")


def test_ranks_are_asked_where_no_thread_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from Python 3.12 on, when the interpreter ends."""

    def refused(thread: Any) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    for rank in range(2):
        write_record(tmp_path / f"rank-{rank}.record", rank, 2, pid=os.getpid())
    records = load_job([tmp_path]).records
    monkeypatch.setattr(threading.Thread, "start", refused)
    found = take_stacks(records, 2.0)
    assert list(found) == [0, 1]
    assert all(text.startswith("no stacks: TFRING_STACKS is 0") for text in found.values())
