"""Processes that a rank has started, while it goes on: they have nothing of the ranks' memory."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import tensorflow as tf

import tfring as hvd

SEGMENT = "memfd:tfring"

LOOK = f"""
import os, sys
from pathlib import Path
targets = [os.readlink(f"/proc/self/fd/{{n}}") for n in range(1024)
           if os.path.lexists(f"/proc/self/fd/{{n}}")]
found = {SEGMENT!r} in Path("/proc/self/maps").read_text() or any({SEGMENT!r} in t for t in targets)
print(found, flush=True)
sys.stdin.read()
"""


def _has_segment() -> bool:
    """Whether this process maps, or holds, memory of ranks."""
    targets = []
    for number in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{number}"
        if os.path.lexists(path):
            targets.append(os.readlink(path))
    maps = Path("/proc/self/maps").read_text()
    return SEGMENT in maps or any(SEGMENT in target for target in targets)


def _check_sums(times: int) -> None:
    """Allreduces of the sizes for which arenas have different ways."""
    for number in range(times):
        for size in (3, 5_000, 700_000):
            own = np.full(size, hvd.rank() + number, np.float32)
            total = hvd.allreduce(tf.constant(own), op=hvd.Sum, name=f"children.{size}")
            expected = hvd.size() * (hvd.size() - 1) / 2 + number * hvd.size()
            assert np.all(total.numpy() == expected)


def test_a_forked_child_has_none_of_the_memory_of_ranks_and_harms_none() -> None:
    _check_sums(1)
    told, tell = os.pipe()
    waits, release = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # threads, of which the child needs none
        child = os.fork()
    if child == 0:
        os.close(release)
        os.write(tell, b"1" if _has_segment() else b"0")
        os.read(waits, 1)
        os._exit(0)
    os.close(waits)
    try:
        assert os.read(told, 1) == b"0"
        _check_sums(3)  # the child is alive
    finally:
        os.close(release)
        os.waitpid(child, 0)
        os.close(told)
        os.close(tell)
    _check_sums(1)


def test_a_program_that_a_rank_starts_has_none_of_the_memory_of_ranks() -> None:
    words = [sys.executable, "-c", LOOK]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, close_fds=False
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "False\n"
        _check_sums(3)
        child.communicate("")
    assert child.returncode == 0
