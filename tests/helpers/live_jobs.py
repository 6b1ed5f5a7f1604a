"""A job of two ranks without TensorFlow, to watch from outside, and a terminal to watch it with."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from launcher_tools import (
    LIMIT_SECONDS,
    REPORT,
    alive,
    environment,
    finish,
    pids_in,
    run_command,
    write_script,
)

# Runs steps until a file appears; then rank 1 waits for its own lock, and rank 0 for rank 1.
SCRIPT = """
    import time, threading
    import numpy as np
    from tfring.runtime import _native, topology
    from tfring import world
    from tfring.runtime._native import core

    def take_the_lock(lock):
        with lock:
            with lock:  # the deadlock
                pass

    world.init()
    rank = topology.rank()
    step = 0
    while True:
        mine = np.array([os.path.exists(f"{sys.argv[1]}/hang")])
        if core.allgather(mine, name="hang").any():
            break
        core.mark_step(step, 32 * step)
        core.allreduce(np.ones(1 << 14, np.float32), name="gradients", op=1)
        step += 1
        if step == 5:
            report(f"pid.{rank}", os.getpid())
        time.sleep(0.01)
    if rank == 1:
        take_the_lock(threading.Lock())
    _native.note_call_site(); core.allreduce(np.ones(3, np.float32), name="after", op=1)
"""
AFTER = 'name="after"'
DEADLOCK = "with lock:  # the deadlock"


class LiveJob:
    """A running job: `pids` by rank, `records` is the folder of its records."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.script = write_script(folder, SCRIPT, header=REPORT)
        self.process = subprocess.Popen(
            run_command("-np", 2, sys.executable, self.script, folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment(TFRING_RECORD_DIR=str(folder / "records")),
        )
        self.pids = {int(rank): pid for rank, pid in pids_in(folder, 2).items()}
        (self.records,) = (folder / "records").iterdir()

    def line_of(self, text: str) -> int:
        """The line number of a text in the script."""
        return [text in line for line in Path(self.script).read_text().splitlines()].index(True) + 1

    def tfring(self, command: str, *options: str, **more: str) -> Any:
        """Runs `tfring COMMAND` on this job to its end."""
        words = [sys.executable, "-m", "tfring", command, str(self.records), *options]
        return finish(words, **more)

    def end(self) -> None:
        self.process.kill()
        for pid in self.pids.values():
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(LIMIT_SECONDS)


@contextlib.contextmanager
def live_job(folder: Path) -> Iterator[LiveJob]:
    job = LiveJob(folder)
    try:
        yield job
    finally:
        job.end()


class Terminal:
    """A command in its own terminal; gives its screen and sends it keys."""

    ROWS, COLUMNS = 30, 180

    def __init__(self, command: list[str], folder: Path) -> None:
        pyte = pytest.importorskip("pyte")
        self._master, slave = pty.openpty()
        size = struct.pack("HHHH", self.ROWS, self.COLUMNS, 0, 0)
        fcntl.ioctl(slave, termios.TIOCSWINSZ, size)
        self._slave = slave
        self.modes = self.modes_now()
        self.output = b""
        self._screen = pyte.Screen(self.COLUMNS, self.ROWS)
        self._stream = pyte.ByteStream(self._screen)
        # COLUMNS and LINES would override the size of this terminal.
        env = environment(TERM="xterm-256color")
        for name in ("COLUMNS", "LINES"):
            env.pop(name, None)
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=folder,
            env=env,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def modes_now(self) -> list[Any]:
        """The settings of the terminal, for example echo and one key at a time."""
        return termios.tcgetattr(self._slave)

    def text(self) -> str:
        """The text on the screen now."""
        while select.select([self._master], [], [], 0)[0]:
            data = os.read(self._master, 1 << 16)
            self.output += data
            self._stream.feed(data)
        return "\n".join(line.rstrip() for line in self._screen.display)

    def wait_for(self, *texts: str) -> str:
        """Waits until all texts are on the screen; returns the screen."""
        self.wait_until(lambda: all(text in self.text() for text in texts))
        return self.text()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT_SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"the screen is:\n{self.text()}"
            time.sleep(0.02)

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def close(self) -> None:
        """Ends the command if it still runs; then `modes_at_end` and `output` are complete."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(LIMIT_SECONDS)
        self.text()
        self.modes_at_end = self.modes_now()
        os.close(self._master)
        os.close(self._slave)
