"""A writer that is killed at any moment leaves its last published checkpoint."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from launcher_tools import LIMIT_SECONDS, environment

# Runs in a process without threads, because it forks.
COMMON = """
    import os, random, signal, sys
    import numpy as np
    from tfring.checkpoint import Checkpointer

    folder = sys.argv[1]

    def open_at(place):
        return Checkpointer(place, asynchronous=False, keep_last=1)

    def state(step):
        return {"a": np.full(5000, step), "b": bytes([step % 256]) * 9}

    def newest(place):
        found = open_at(place).load()
        if found is None:
            return 0
        step = found.info.step
        assert (found.state["a"] == step).all() and found.state["b"] == state(step)["b"]
        assert found.info.metadata == {"step": step}
        return step

    def save(place, step):
        open_at(place).save(state(step), step, metadata={"step": step})
"""

# The child ends right before its n-th system call, for every n until it succeeds.
AT_EVERY_CALL = """
    import builtins

    class Counted:
        def __init__(self, file):
            self.file = file

        def write(self, data):
            half = len(data) // 2
            self.file.write(data[:half])
            self.file.flush()
            count()  # in the midst of a write
            self.file.write(data[half:])

        def __getattr__(self, name):
            return getattr(self.file, name)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self.file.close()

    calls = 0

    def count():
        global calls
        calls += 1
        if calls == last:
            os._exit(7)

    def counted(real):
        def call(*arguments, **named):
            count()
            return real(*arguments, **named)
        return call

    def child(place):
        for name in ("replace", "fsync", "unlink", "stat", "scandir", "makedirs"):
            setattr(os, name, counted(getattr(os, name)))
        real = open
        def counted_open(path, mode="r", **named):
            count()
            file = real(path, mode, **named)
            return Counted(file) if mode == "xb" else file
        builtins.open = counted_open
        save(place, 4)
        os._exit(0)

    kept = {3: 0, 4: 0}
    for last in range(1, 1000):
        place = f"{folder}/{last}"
        save(place, 3)
        pid = os.fork()
        if pid == 0:
            child(place)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        kept[newest(place)] += 1
        save(place, 5)
        assert newest(place) == 5
        assert len(os.listdir(place)) == 3, "nothing is left of the killed writer"
        if code == 0:
            break
        assert code == 7
    assert code == 0 and last > 20 and min(kept.values()) > 5, (last, kept)
    print("calls", last)
"""

# The child reports what it has published, and is killed at a random moment after that.
AT_ANY_MOMENT = """
    for seed in range(12):
        draw = random.Random(seed)
        place = f"{folder}/{seed}"
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            for step in range(1, 1000000):
                save(place, step)
                os.write(write_end, b".")
        os.close(write_end)
        told = 0
        for _ in range(draw.randrange(1, 6)):
            told += len(os.read(read_end, 1))
        for _ in range(draw.randrange(2000)):
            pass
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        while more := os.read(read_end, 4096):
            told += len(more)
        os.close(read_end)
        assert told <= newest(place) <= told + 1
    print("killed")
"""


def run(folder: Path, script: str) -> str:
    """Runs a script in its own process; returns its output."""
    command = [sys.executable, "-c", textwrap.dedent(COMMON + script), str(folder)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=environment(),
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_crash_at_every_call_of_the_operating_system(tmp_path: Path) -> None:
    assert "calls" in run(tmp_path, AT_EVERY_CALL)


@pytest.mark.slow
def test_kill_9_at_any_moment(tmp_path: Path) -> None:
    assert "killed" in run(tmp_path, AT_ANY_MOMENT)


def test_a_program_that_ends_without_close_has_published(tmp_path: Path) -> None:
    script = """
    Checkpointer(folder).save(state(6), 6, metadata={"step": 6})
    print("ends")
"""
    assert "ends" in run(tmp_path, script)
    assert "6" in run(tmp_path, "    print(newest(folder))\n")
