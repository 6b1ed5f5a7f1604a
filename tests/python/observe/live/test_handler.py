"""What a rank does on SIGUSR1, and where it answers requests for its stacks."""

from __future__ import annotations

from pathlib import Path

import pytest
from launcher_tools import run_python, write_script

native = pytest.importorskip("tfring.runtime._native")

SCRIPT = """
import os, pathlib, signal, sys
from tfring import world
from tfring.observe.recorder.job import load_job
from tfring.observe.recorder.stacks import take_stacks

def own_stacks():
    return take_stacks(load_job([folder]).records)[0]

folder = os.environ["TFRING_RECORD_DIR"] = sys.argv[1]
os.environ["TFRING_JOB_ID"] = "one"

came = []
signal.signal(signal.SIGUSR1, lambda *_: came.append(1))
world.init()
os.kill(os.getpid(), signal.SIGUSR1)
assert came == [1], "the program's own handler is gone"
assert "in own_stacks" in own_stacks() and came == [1]
world.shutdown()
signal.signal(signal.SIGUSR1, signal.SIG_DFL)

os.environ["TFRING_STACKS"] = "0"
world.init()
assert "TFRING_STACKS is 0" in own_stacks()
world.shutdown()

os.environ["TFRING_STACKS"] = "1"
world.init()
assert "in own_stacks" in own_stacks()
os.kill(os.getpid(), signal.SIGUSR1)
world.shutdown()
os.kill(os.getpid(), signal.SIGUSR1)  # ends nobody
assert not list(pathlib.Path(folder).glob("*/*.socket"))
print("all of it")
"""


def test_the_handler_and_the_socket(tmp_path: Path) -> None:
    done = run_python(write_script(tmp_path, SCRIPT), str(tmp_path / "records"))
    assert (done.returncode, done.stdout) == (0, "all of it\n"), done.stderr
    assert done.stderr.count("in <module>") == 2
