"""When a rank has a handler of SIGUSR1, and what becomes of its file."""

from __future__ import annotations

from pathlib import Path

import pytest
from launcher_tools import run_python, write_script

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


def test_the_handler_and_its_file(tmp_path: Path) -> None:
    done = run_python(write_script(tmp_path, SCRIPT), str(tmp_path / "records"))
    assert (done.returncode, done.stdout) == (0, "all of it\n"), done.stderr
