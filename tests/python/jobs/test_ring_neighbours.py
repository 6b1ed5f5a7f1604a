"""A job too large to connect all ranks: collectives around its ring while ranks have joined."""

from __future__ import annotations

import sys

import pytest
from launcher_tools import run, write_script

pytest.importorskip("tfring._native")

SCRIPT = """
    import numpy as np
    import tfring as hvd
    from tfring._native import core

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    assert size == 5
    mine = np.full(3000, rank + 1.0, np.float32)

    def total(name):
        return core.allreduce(mine, name=name, op=1)[-1]

    def expect_refusal(call, part):
        try:
            call()
        except core.CoreError as error:
            assert part in str(error), str(error)
        else:
            raise AssertionError("nothing was refused")

    assert total("all") == 15
    # A collective that needs other connections ends on all ranks; no other one does.
    expect_refusal(lambda: core.alltoall(mine, name="to all"), "which alltoall needs")
    assert total("all") == 15

    if rank != 2:
        # The ring has a gap: 3, 4, 0, 1.
        assert total("without 2") == 12
        rows = core.allgather(np.full(rank + 1, rank, np.int64), name="rows")
        assert rows.tolist() == [0] + [1] * 2 + [3] * 4 + [4] * 5
        for root in (0, 1, 3, 4):
            assert core.broadcast(mine, name=f"from {root}", root=root)[-1] == root + 1
            result = core.reduce(mine, name=f"to {root}", root=root, op=1)
            assert (result is None) if rank != root else result[0] == 12
    if rank in (1, 3, 4):
        # Two gaps: rank 1 has no neighbour left.
        expect_refusal(lambda: total("without 0 and 2"), "ranks 1, 3, 4 are not connected")
    core.join()
    assert total("all") == 15
    hvd.shutdown()
    print("through", rank)
"""


def test_collectives_around_a_gap(tmp_path):
    """Rank 2 joins first, then rank 0, then the others."""
    path = write_script(tmp_path, SCRIPT)
    done = run("-np", 5, sys.executable, path, TFRING_MESH_LIMIT="2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("through") == 5
