"""A path between two hosts is cut in the middle of a collective; all still reach rank 0."""

from __future__ import annotations

import json
import time

import pytest
from launcher_tools import REPORT, pids_in, wait_until, write_script
from network_namespaces import hosts

pytest.importorskip("tfring.runtime._native")

DEADLINE_EXCEEDED = 4
LIMIT_SECONDS = 5.0
# Time for the error to reach all ranks; on a busy machine as long as the start of the job.
MARGIN_SECONDS = 2.0

SCRIPT = """
    import json, os, sys, time
    import numpy as np
    from tfring.runtime import topology
    from tfring import world
    from tfring.runtime._native import core

    world.init()
    rank = topology.rank()
    assert topology.local_size() == 1
    values = np.ones(1 << 20, np.float32)
    try:
        for step in range(1 << 30):
            assert core.allreduce(values, name="step", op=1)[-1] == topology.size()
            if step == 10:
                report(f"pid.{rank}", os.getpid())
    except core.CoreError as error:
        report(f"end.{rank}", json.dumps([time.monotonic(), error.code, error.message]))
        raise
"""


def test_both_ends_of_a_cut_path_are_named(tmp_path):
    """Ranks 2 and 3 cannot reach each other any more; the job ends within the stall limit."""
    path = write_script(tmp_path, SCRIPT, header=REPORT)
    limits = {
        "TFRING_STALL_CHECK_TIME_SECONDS": "2",
        "TFRING_STALL_SHUTDOWN_TIME_SECONDS": str(LIMIT_SECONDS),
    }
    with hosts(4) as made:
        started_at = time.monotonic()
        jobs = [made.start(rank, path, tmp_path, **limits) for rank in range(4)]
        try:
            pids_in(tmp_path, 4)
            made.cut(2, 3)
            cut_at = time.monotonic()
            margin = max(MARGIN_SECONDS, cut_at - started_at)
            wait_until(lambda: all(job.poll() is not None for job in jobs), 40)
        finally:
            for job in jobs:
                job.kill()
            errors = [job.communicate()[1] for job in jobs]
    for rank in range(4):
        end = tmp_path / f"end.{rank}"
        assert end.exists(), f"rank {rank} did not end:\n{errors[rank]}"
        seen_at, code, message = json.loads(end.read_text())
        assert code == DEADLINE_EXCEEDED, message
        assert "rank 2 (host h2)" in message and "rank 3 (host h3)" in message, message
        assert "allreduce of 'step'" in message, message
        assert seen_at - cut_at < LIMIT_SECONDS + margin, (rank, message)
    assert any("warning: plan" in text for text in errors), errors
