"""Rank 0 leaves first: what the others do without it goes on. Whole jobs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from launcher_tools import REPORT, run, write_script

native = pytest.importorskip("tfring._native")

SCRIPT = """
    import time
    import numpy as np
    from tfring import topology, world
    from tfring._native import core

    world.init()
    rank = topology.rank()
    pair = core.add_process_set([1, 2])
    core.barrier(name="all")
    if rank > 0:
        big = np.ones(1 << 20, np.float32)
        running = core.allreduce_async(big, name="running", op=1, process_set=pair)
        time.sleep(1.0)  # rank 0 has left
        assert running.wait()[-1] == 2
        for step in range(20):
            assert core.allreduce(big, name="step", op=1, process_set=pair)[-1] == 2
        try:
            core.allreduce(big, name="with rank 0", op=1)
        except core.CoreError as error:
            assert "rank 0" in error.message and "has shut down" in error.message, error.message
        else:
            raise AssertionError("without rank 0")
    world.shutdown()
    report(f"end.{rank}", "ok")
"""


def test_rank_0_plans_on_for_process_sets_without_it(tmp_path: Path) -> None:
    path = write_script(tmp_path, SCRIPT, header=REPORT)
    done = run("-np", 3, sys.executable, path, tmp_path)
    assert done.returncode == 0, done.stderr
    assert {f.name for f in tmp_path.glob("end.*")} == {"end.0", "end.1", "end.2"}
