"""A rank is killed at a random moment of steps that are locked. Whole jobs."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest
from launcher_tools import REPORT, run, write_script
from tiers import slow

native = pytest.importorskip("tfring.runtime._native")

RANKS, THREADS, WARM_UP = 3, 2, 40
UNAVAILABLE = 14

SCRIPT = f"""
import json, os, random, signal, sys, threading, time
import numpy as np
import tfring
from tfring.runtime._native import core

seed, victim, delay = int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
tfring.init()
rank = core.rank()


together = threading.Barrier({THREADS})  # at the end of a step


def die():
    while core.counters()["locks"] == 0:
        time.sleep(0.01)
    time.sleep(delay)
    os.kill(os.getpid(), signal.SIGKILL)


def train(thread):
    choice = random.Random(f"{{seed}} {{thread}}")  # the same on all ranks
    names = [f"t{{thread}}.{{i}}" for i in range(choice.randint(1, 6))]
    sizes = {{name: choice.randint(1, 30000) for name in names}}
    for step in range(1 << 30):
        odd = step > {WARM_UP} and choice.random() < 0.02
        for name in names + [f"odd{{thread}}"] * odd:
            values = np.full(sizes.get(name, 5), step + rank, np.float32)
            result = core.allreduce(values, name=name, op=1)
            assert (result == {RANKS} * step + 3).all(), (name, step, result)
        try:
            together.wait()
        except threading.BrokenBarrierError:
            pass  # the other thread has its error; the next call here has one, too


def until_the_end(thread):
    try:
        train(thread)
    except core.CoreError as error:
        report(f"end.{{rank}}.{{thread}}", json.dumps([error.code, error.message]))
        together.abort()


if rank == victim:
    threading.Thread(target=die, daemon=True).start()
threads = [threading.Thread(target=until_the_end, args=(t,)) for t in range({THREADS})]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


@pytest.mark.parametrize("seed", [slow(seed) for seed in range(4)])
def test_survivors_hear_of_it(tmp_path: Path, seed: int) -> None:
    """Each thread of each other rank gets the error; sums were right until then."""
    choice = random.Random(seed)
    victim, delay = choice.randrange(RANKS), choice.uniform(0, 0.05)
    path = write_script(tmp_path, SCRIPT, header=REPORT)
    command = ("-np", RANKS, sys.executable, path, tmp_path, seed, victim, delay)
    done = run(*command, TFRING_LOCK_SCHEDULE="1")
    assert done.returncode == 137, done.stderr
    for rank in (r for r in range(RANKS) if r != victim):
        for thread in range(THREADS):
            end = tmp_path / f"end.{rank}.{thread}"
            assert end.exists(), f"thread {thread} of rank {rank} saw no error:\n{done.stderr}"
            code, message = json.loads(end.read_text())
            assert code == UNAVAILABLE, (rank, code, message)
            assert f"rank {victim} (host " in message, (rank, message)
