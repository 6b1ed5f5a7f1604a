"""When a rank has a handler of SIGUSR1, and what becomes of its file."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest
from launcher_tools import REPORT, pids_in, run_python, start_command, wait_until, write_script

from tfring.recorder import stacks
from tfring.recorder.job import load_job
from tfring.recorder.stacks import take_stacks

native = pytest.importorskip("tfring._native")

SCRIPT = """
import faulthandler, os, pathlib, signal, sys
from tfring import world

def files():
    return [path.name for path in pathlib.Path(folder).glob("*/*.stacks")]

folder = os.environ["TFRING_RECORD_DIR"] = sys.argv[1]
os.environ["TFRING_JOB_ID"] = "one"

came = []
signal.signal(signal.SIGUSR1, lambda *_: came.append(1))
world.init()
assert files() == []
os.kill(os.getpid(), signal.SIGUSR1)
assert came == [1], "the program's own handler is gone"
world.shutdown()
signal.signal(signal.SIGUSR1, signal.SIG_DFL)

with open(sys.argv[1] + ".own", "w+") as own:
    faulthandler.register(signal.SIGUSR1, file=own)
    world.init()
    assert files() == []
    os.kill(os.getpid(), signal.SIGUSR1)
    own.seek(0)
    assert "in <module>" in own.read()
    world.shutdown()
    faulthandler.unregister(signal.SIGUSR1)

os.environ["TFRING_STACKS"] = "0"
world.init()
assert files() == []
world.shutdown()

os.environ["TFRING_STACKS"] = "1"
world.init()
assert files() == ["rank-0.stacks"]
world.shutdown()
assert files() == [], "an empty file stays"

world.init()
os.kill(os.getpid(), signal.SIGUSR1)
world.shutdown()
os.kill(os.getpid(), signal.SIGUSR1)  # ends nobody
(path,) = pathlib.Path(folder).glob("*/*.stacks")
assert path.read_text().count("in <module>") == 2

del os.environ["TFRING_RECORD_DIR"]
world.init()
path = pathlib.Path(world._state.record)
assert path.with_suffix(".stacks").exists()
os.kill(os.getpid(), signal.SIGUSR1)
world.shutdown()
assert not path.parent.exists(), "of a job that ended well nothing stays"
print("all of it")
"""


HOLDS_THE_INTERPRETER = """
import ctypes
from tfring import world

def hold():
    while True:
        ctypes.PyDLL(None).usleep(60_000_000)

world.init()
report("pid.0", os.getpid())
hold()
"""


def test_a_rank_that_holds_the_interpreter_lock_answers(tmp_path: Path) -> None:
    script = write_script(tmp_path, HOLDS_THE_INTERPRETER, header=REPORT)
    folder = tmp_path / "records"
    more = {"TFRING_RECORD_DIR": str(folder)}
    process = start_command([sys.executable, script, str(tmp_path)], **more)
    try:
        pids_in(tmp_path, 1)
        records = load_job([folder]).records
        assert wait_until(lambda: " in hold\n" in take_stacks(records)[0])
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()


def test_the_handler_and_its_file(tmp_path: Path) -> None:
    done = run_python(write_script(tmp_path, SCRIPT), str(tmp_path / "records"))
    assert (done.returncode, done.stdout) == (0, "all of it\n"), done.stderr


def test_an_answer_is_complete_when_no_thread_runs_the_handler(tmp_path: Path) -> None:
    thread = f"{os.getpid()}/task/{threading.get_native_id()}"
    with (tmp_path / "rank-0.stacks").open("wb+", buffering=0) as file:
        asked = stacks._Asked(os.getpid(), file, 0, [thread])
        assert stacks._answer(asked) is None
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])  # as a handler has it
        try:
            file.write(b"the first half")
            assert stacks._answer(asked) is None
            file.write(b", the second half")
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        assert stacks._answer(asked) == "the first half, the second half"
