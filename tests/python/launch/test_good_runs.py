"""The screen of a good run: the program's output, and two lines of tfring."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

import pytest
from launcher_tools import ROOT, environment, finish, mpirun, run_command, write_script
from tiers import slow

from tfring.version import __version__

PROGRAM = re.search(
    r"```python\n(import keras\n.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
)
# A library cannot suppress what TensorFlow prints before tfring is imported.
BEFORE = """
import os
kept = os.dup(2)
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
import keras
os.dup2(kept, 2)
"""
FIRST = re.compile(
    rf"tfring {re.escape(__version__)}  job [0-9a-f]{{6}}  2 ranks on \S+ \(\d+ CPUs?\)"
    r"  shared memory  watch: tfring top"
)
LAST = re.compile(
    r"tfring: done in [\w ]+, all ranks equal\. "
    r"\d+% computing, \d+% waiting( \(\d+% of it for rank \d\))?, \d+% communication"
)
JOINS = "import tfring; tfring.init()"


@pytest.fixture(autouse=True)
def with_one_dnn(monkeypatch):
    """TensorFlow announces oneDNN at each start, as it does for users."""
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "1")


def start(launcher, path, **more):
    if launcher == "mpirun":
        return mpirun(2, path, **more)
    return finish([sys.executable, "-m", "tfring", "run", "-np", "2", sys.executable, path], **more)


@pytest.mark.parametrize("launcher", ["tfring run", slow("mpirun")])
def test_the_program_of_the_readme(launcher, tmp_path):
    """It prints Keras' lines and two of tfring: nothing of TensorFlow, no warning, no prefix."""
    program = PROGRAM[1] if launcher == "tfring run" else BEFORE + PROGRAM[1]
    done = start(launcher, write_script(tmp_path, program))
    assert done.returncode == 0, done.stderr
    keras = done.stdout.splitlines()
    assert keras[::2] == [f"Epoch {epoch}/5" for epoch in range(1, 6)]
    assert len(keras) == 10 and all(line.startswith("16/16 - ") for line in keras[1::2])
    first, last = done.stderr.splitlines()
    assert FIRST.fullmatch(first), first
    assert LAST.fullmatch(last), last


def test_tensorflows_lines_come_if_asked_for(tmp_path):
    path = write_script(tmp_path, "import tensorflow\n")
    options = ("-np", 1, "--show-tensorflow-info", sys.executable, path)
    shown = finish(run_command(*options), TF_CPP_MIN_LOG_LEVEL="0")
    assert "oneDNN custom operations" in shown.stderr


@pytest.mark.parametrize(
    ("launcher", "variable", "value"),
    [("tfring run", "TFRING_LOG_LEVEL", "warning"), ("mpirun", "TFRING_LOG_FORMAT", "json")],
)
def test_nothing_is_said_where_nobody_wants_it(launcher, variable, value, tmp_path):
    done = start(launcher, write_script(tmp_path, JOINS), **{variable: value})
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_job_that_fails_is_not_said_to_be_done(tmp_path):
    done = start("tfring run", write_script(tmp_path, f"{JOINS}; raise KeyError('here')"))
    assert done.returncode == 1
    assert "watch: tfring top" in done.stderr and "tfring: done" not in done.stderr


def test_rank_0_does_not_say_done_while_another_rank_may_fail(tmp_path):
    late = "import time; tfring.rank() and time.sleep(0.5); assert not tfring.rank()"
    done = mpirun(2, write_script(tmp_path, f"{JOINS}; {late}"))
    assert "AssertionError" in done.stderr and "tfring: done" not in done.stderr, done.stderr
    first, last = mpirun(2, write_script(tmp_path, JOINS)).stderr.splitlines()
    assert FIRST.fullmatch(first) and last.startswith("tfring: done in"), (first, last)


def on_a_terminal(columns, *options, **more):
    """Returns what `tfring run` shows on a terminal of this width."""
    main, side = pty.openpty()
    os.set_inheritable(side, True)
    subprocess.run(["stty", "cols", str(columns), "rows", "24"], stdin=side, check=True)
    command = [sys.executable, "-m", "tfring", "run", *map(str, options)]
    own = {k: v for k, v in environment(**more).items() if k not in ("COLUMNS", "NO_COLOR")}
    job = subprocess.Popen(command, stdin=side, stdout=side, stderr=side, env={**own, **more})
    os.close(side)
    shown = b""
    try:
        while part := os.read(main, 1 << 16):
            shown += part
    except OSError:  # the terminal has no writer any more
        pass
    os.close(main)
    assert job.wait() == 0
    return shown.decode()


def test_a_terminal(tmp_path):
    columns = 80
    path = write_script(
        tmp_path,
        """
        import os, shutil, sys, time
        import tfring
        tfring.init()
        if tfring.rank() == 0:
            for step in range(3):
                print(f"\\r{step + 1}/3 {'#' * step}", end="", flush=True)
                time.sleep(0.2)
            print()
        else:
            time.sleep(3)
            print(shutil.get_terminal_size().columns)
        tfring.barrier()
        """,
    )
    shown = on_a_terminal(columns, "-np", 2, sys.executable, path, TERM="xterm")
    first, *bar, width, last, end = shown.split("\r\n")
    assert first.endswith("  watch: tfring top") and end == ""
    assert bar == ["1/3 \r2/3 #\r3/3 ##"]
    assert width == f"\x1b[33m1|\x1b[0m {columns - 3}"
    assert last.startswith("tfring: done in ")
    plain = on_a_terminal(columns, "-np", 2, sys.executable, path, NO_COLOR="1")
    assert f"1| {columns - 3}" in plain
