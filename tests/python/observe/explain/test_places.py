"""The report on stacks: made up ones, and those of a process that waits for a lock."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from launcher_tools import environment, wait_until
from made_records import write_record

from tfring.observe.explain.causes import Cause
from tfring.observe.explain.explain import explain_now
from tfring.observe.explain.places import find_place
from tfring.observe.recorder import stacks
from tfring.observe.recorder.job import load_job
from tfring.observe.recorder.reader import read_record

SECOND = 1_000_000_000
PACKAGES = "/venv/lib/python3.11/site-packages"
FIT = f"""
  File "{PACKAGES}/tensorflow/python/eager/execute.py", line 53 in quick_execute
  File "{PACKAGES}/keras/src/trainers/trainer.py", line 371 in fit
  File "/job/train.py", line 40 in main
  File "/job/train.py", line 50 in <module>
"""


def thread(name: str, *frames: str) -> str:
    return "\n".join([stacks.format_head(name), *(f"  File {frame}" for frame in frames)]) + "\n"


@pytest.mark.parametrize(
    ("frames", "kernel", "said"),
    [
        (('"/job/a.py", line 3 in take',), "futex_wait_queue", "a lock or another thread"),
        (('"/job/a.py", line 3 in take',), "hrtimer_nanosleep", "sleeping"),
        (('"/job/a.py", line 3 in take',), "", None),
        (
            ('"/usr/lib/python3.11/socket.py", line 9 in r', '"/job/a.py", line 3 in take'),
            "",
            "the network",
        ),
        (('"<frozen runpy>", line 9 in r', '"/job/a.py", line 3 in take'), "", None),
    ],
)
def test_what_the_main_thread_waits_for(
    frames: tuple[str, ...], kernel: str, said: str | None
) -> None:
    found = find_place(thread(stacks.MAIN, *frames), kernel)
    waiting = "" if said is None else said if said == "sleeping" else f"waiting for {said}"
    assert found == "take (a.py:3)" + (f", {waiting}" if waiting else "")


def test_a_generator_that_tensorflow_calls_is_named_beside_fit() -> None:
    generator = thread("of C++", '"/job/data.py", line 12 in next_batch')
    start = '"/usr/lib/python3.11/threading.py", line 1002 in _bootstrap'
    own = thread("logger", '"/job/log.py", line 9 in write', start)
    main = stacks.format_head(stacks.MAIN) + FIT
    assert find_place("\n".join([main, own, generator])) == (
        "main (train.py:40), and in next_batch (data.py:12) on a thread of TensorFlow's"
    )
    assert find_place("\n".join([main, own])) == "main (train.py:40)"


def test_no_stacks_are_no_place() -> None:
    assert (
        find_place("no stacks: it runs on host b or in another container: ask for them there") == ""
    )


WAITS = """
import ctypes, sys, threading
from tfring.observe.recorder import stacks

def next_batch(wait):
    wait()

stacks.watch(sys.argv[1], True)
lock = threading.Lock()
lock.acquire()
print("here", flush=True)
next_batch({"lock": lock.acquire, "keeps": lambda: ctypes.PyDLL(None).sleep(60)}[sys.argv[2]])
"""


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("lock", "Rank 1 waits for a lock or another thread in next_batch (data.py:6)"),
        ("keeps", f"Its current line is unknown, because {stacks.KEEPS_LOCK}"),
    ],
)
def test_a_rank_that_does_not_call_is_asked_where_it_is(
    tmp_path: Path, how: str, said: str
) -> None:
    script, files = tmp_path / "data.py", [tmp_path / f"rank-{rank}.record" for rank in (0, 1)]
    script.write_text(WAITS)
    now = read_record(write_record(files[0], 0, 1)).read or 0
    command = [sys.executable, script, files[1], how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment()) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"here\n"
            call = {"number": 1, "name": "loss", "invocation": 1, "submitted": now - 60 * SECOND}
            times = {"awake": now, "started_monotonic": now - 90 * SECOND}
            write_record(files[0], 0, 2, calls=[call], pid=os.getpid(), **times)
            write_record(files[1], 1, 2, pid=process.pid, **times)
            wait_until(lambda: "S" in stacks.status(process.pid).get("State", ""))
            found = explain_now(files)
        finally:
            process.kill()
    assert (found.cause, found.ranks) == (Cause.NOT_CALLING, (1,)), found.text
    assert said in found.text


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
    found = stacks.take_stacks(records, 2.0)
    assert list(found) == [0, 1]
    assert all(text.startswith("no stacks: TFRING_STACKS is 0") for text in found.values())
