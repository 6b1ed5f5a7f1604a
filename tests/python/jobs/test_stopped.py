"""Ranks that do not run for a while, and go on: nothing is lost. Whole jobs.

TFRING_TEST_STOP_SECONDS=40 stops the job for 40 s, and one rank for half of that, with the default
heartbeats; by default all times are shorter in proportion.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launcher_tools import (
    LIMIT_SECONDS,
    REPORT,
    alive,
    environment,
    pids_in,
    run_command,
    wait_until,
    write_script,
)

native = pytest.importorskip("tfring.runtime._native")

LONGER = float(os.environ.get("TFRING_TEST_STOP_SECONDS", "5"))  # than the timeout
SHORTER = LONGER / 2 if LONGER > 30 else 1.5
HEARTBEATS = {"TFRING_HEARTBEAT_SECONDS": "0.5", "TFRING_HEARTBEAT_TIMEOUT_SECONDS": "3"}
if LONGER > 30:
    HEARTBEATS = {"TFRING_HEARTBEAT_SECONDS": "5", "TFRING_HEARTBEAT_TIMEOUT_SECONDS": "30"}

SCRIPT = """
    import os, time
    import numpy as np
    from tfring.runtime import topology
    from tfring import world
    from tfring.runtime._native import core

    world.init()
    rank = topology.rank()
    step = 0
    while True:
        mine = np.array([os.path.exists(f"{sys.argv[1]}/enough")])
        if core.allgather(mine, name="enough").any():
            break
        assert core.allreduce(np.ones(1 << 14, np.float32), name="step", op=1)[0] == topology.size()
        step += 1
        report(f"step.{rank}", step)
        if step == 20:
            report(f"pid.{rank}", os.getpid())
        time.sleep(0.01)
    report(f"end.{rank}", step)
"""


def state(pid: int) -> str:
    """The state of a process in the kernel: T is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


class Job:
    """A job of two ranks that runs steps until it is told to end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = write_script(folder, SCRIPT, header=REPORT)
        self.process = subprocess.Popen(
            run_command("-np", 2, sys.executable, path, folder),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            env=environment(**HEARTBEATS),
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGTSTP, signal.SIG_DFL),
        )
        self.pids = list(pids_in(folder, 2).values())

    def goes_on(self) -> bool:
        """Whether both ranks run steps."""

        def steps() -> list[int]:
            return [int((self.folder / f"step.{rank}").read_text()) for rank in range(2)]

        before = steps()
        return wait_until(lambda: min(steps()) > max(before), 20)

    def end(self) -> None:
        """Ends the job and checks that both ranks ended well."""
        (self.folder / "enough").touch()
        _, err = self.process.communicate(timeout=LIMIT_SECONDS)
        assert self.process.returncode == 0, err
        assert {f.name for f in self.folder.glob("end.*")} == {"end.0", "end.1"}, err
        assert "lost" not in err


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    started = Job(tmp_path)
    yield started
    if started.process.poll() is None:
        for pid in [*started.pids, started.process.pid]:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        started.process.communicate()


def test_ranks_that_are_stopped_and_go_on_lose_nobody(job: Job) -> None:
    def everybody(number: int) -> None:
        for pid in job.pids:
            os.kill(pid, number)

    def stop(seconds: float, send: Callable[[int], None]) -> None:
        send(signal.SIGSTOP)
        time.sleep(seconds)
        send(signal.SIGCONT)
        assert job.process.poll() is None and job.goes_on()

    stop(LONGER, everybody)
    for pid in job.pids:
        stop(SHORTER, lambda number, pid=pid: os.kill(pid, number))
    # Ctrl-Z and fg: the terminal sends these to the process group of the launcher.
    os.killpg(job.process.pid, signal.SIGTSTP)
    assert wait_until(lambda: all(state(p) == "T" for p in job.pids)), "the ranks run on"
    time.sleep(LONGER)
    os.killpg(job.process.pid, signal.SIGCONT)
    assert job.goes_on()
    job.end()
