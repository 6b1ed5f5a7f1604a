"""When a rank has a handler of SIGUSR1, and the file of its answer."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from launcher_tools import REPORT, pids_in, run_python, start_command, wait_until, write_script

from tfring.observe.recorder import stacks
from tfring.observe.recorder import take_stacks as asking
from tfring.observe.recorder.job import load_job
from tfring.observe.recorder.take_stacks import take_stacks

native = pytest.importorskip("tfring.runtime._native")

SCRIPT = """
import faulthandler, os, pathlib, signal, sys
from tfring import world
from tfring.observe.recorder.own import own_path
from tfring.observe.recorder.job import load_job
from tfring.observe.recorder.take_stacks import take_stacks

def files():
    return [path.name for path in pathlib.Path(folder).glob("*/*.stacks")]

def own_stacks():
    return take_stacks(load_job([folder]).records)[0]

folder = os.environ["TFRING_RECORD_DIR"] = sys.argv[1]
os.environ["TFRING_JOB_ID"] = "one"

came = []
signal.signal(signal.SIGUSR1, lambda *_: came.append(1))
world.init()
assert files() == []
os.kill(os.getpid(), signal.SIGUSR1)
assert came == [1], "the program's own handler is gone"
assert "in own_stacks" in own_stacks() and came == [1]
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
assert files() == [] and "TFRING_STACKS is 0" in own_stacks()
world.shutdown()

os.environ["TFRING_STACKS"] = "1"
world.init()
assert files() == ["rank-0.stacks"] and "in own_stacks" in own_stacks()
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
path = own_path()
assert path.with_suffix(".stacks").exists()
os.kill(os.getpid(), signal.SIGUSR1)
world.shutdown()
assert not path.parent.exists(), "of a job that ended well nothing stays"
print("all of it")
"""


HOLDS_THE_INTERPRETER = """
import ctypes, threading
from tfring import world

def waits_for_it():
    threading.Event().wait()

threading.Thread(target=waits_for_it, daemon=True).start()

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
        with ThreadPoolExecutor(3) as pool:
            texts = [found[0] for found in pool.map(take_stacks, [records] * 3)]
        assert [text.count(" in hold\n") for text in texts] == [1, 1, 1], texts
        assert all(text.startswith("Thread [MainThread] ") for text in texts)
        assert all(" in waits_for_it\n" in text for text in texts), texts

        file = stacks.stacks_file(records[0].path)
        away = file.rename(tmp_path / "away")
        assert "handles SIGUSR1 itself" in take_stacks(records)[0]
        file.symlink_to(away)
        assert take_stacks(records)[0].startswith("no stacks: ")
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()


def test_the_handler_and_its_file(tmp_path: Path) -> None:
    done = run_python(write_script(tmp_path, SCRIPT), str(tmp_path / "records"))
    assert (done.returncode, done.stdout) == (0, "all of it\n"), done.stderr


def test_an_answer_is_complete_when_the_handler_is_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that takes its time between the signal and the end of its handler."""
    sleeping, running, bit = "S (sleeping)", "R (running)", f"{stacks.BIT:x}"
    with (tmp_path / "rank-0.stacks").open("ab", buffering=0) as file:
        moments = iter(
            [
                ("0", "0", sleeping, b""),  # before
                (bit, "0", sleeping, b""),
                ("0", "0", running, b""),  # it has taken the signal
                ("0", bit, running, b"the first half"),
                ("0", bit, sleeping, b""),
                ("0", "0", running, b", the second half"),
            ]
        )

        def status(_: str) -> dict[str, str]:
            pending, blocked, state, written = next(moments)
            file.write(written)
            return {"SigPnd": pending, "SigBlk": blocked, "State": state}

        monkeypatch.setattr(asking, "status", status)
        monkeypatch.setattr(asking, "mask", lambda task, name: int(status(task)[name], 16))
        monkeypatch.setattr(asking, "_send", lambda pid, thread: None)
        with (tmp_path / "rank-0.stacks").open("rb") as reader:
            text = asking._from_one(1, 1, reader.fileno(), time.monotonic() + 60)
    assert text == "the first half, the second half"
    assert next(moments, None) is None
