"""Jobs with more ranks than are connected at the start: the others connect on demand."""

from __future__ import annotations

import sys

import pytest
from launcher_tools import run, write_script

pytest.importorskip("tfring.runtime._native")

# Ranks on one machine that act as ranks of several hosts.
HOSTS = """
    import os
    import socket
    import sys

    import numpy as np

    rank, on_a_host = int(os.environ["TFRING_X_RANK"]), int(sys.argv[1])
    socket.gethostname = lambda: f"host{rank // on_a_host}"

    import tfring as hvd
    from tfring.runtime._native import core

    def descriptors():
        return len(os.listdir("/proc/self/fd"))
"""

EVERY_KIND = (
    HOSTS
    + """
    def check(round):
        mine = np.full(7, rank + 1, np.float32)
        every = size * (size + 1) // 2
        assert core.allreduce(mine, name=f"sum {round}", op=1)[-1] == every
        large = np.full(1 << 18, rank + 1, np.float32)
        assert core.allreduce(large, name=f"large {round}", op=1)[-1] == every
        # The sum of two vectors that point to one place is their mean.
        same = core.allreduce(np.ones(7, np.float32), name=f"adasum {round}", op=2)
        assert np.allclose(same, 1), same
        parts, _ = core.alltoall(np.arange(size) + 1000 * rank, name=f"to all {round}")
        assert parts.tolist() == [1000 * r + rank for r in range(size)]
        rows = core.allgather(mine[:1], name=f"rows {round}")
        assert rows.tolist() == [r + 1 for r in range(size)]
        for root in (0, size // 2, size - 1):
            assert core.broadcast(mine, name=f"from {root} {round}", root=root)[0] == root + 1
            got = core.reduce(mine, name=f"to {root} {round}", root=root, op=1)
            assert (got is None) if rank != root else got[0] == every
        parts = core.reducescatter(np.ones(size, np.float32), name=f"part {round}", op=1)
        assert parts.tolist() == [size]
        far = size // 2 + 1
        if rank == 0:
            core.send(mine, name=f"far {round}", dest=far)
        elif rank == far:
            assert core.recv(np.float32, [7], name=f"far {round}", source=0)[0] == 1
        chosen = list(range(0, size, on_a_host))
        one_of_each_host = core.add_process_set(chosen, name=f"set {round}")
        if rank in chosen:
            got = core.allreduce(mine, name="few", op=1, process_set=one_of_each_host)
            assert got[0] == sum(r + 1 for r in chosen)
        core.remove_process_set(one_of_each_host)

    for generation in range(2):
        hvd.init()
        size = hvd.size()
        before = descriptors()
        for round in range(2):
            check(round)
            opened = descriptors() - before
            # With all, but those of this host and the two neighbours, which were there before.
            assert round == 0 or opened == 0, opened
            assert round == 1 or opened >= size - on_a_host - 2, opened
            before = descriptors()
        # Ranks that have joined leave gaps.
        if rank % 3:
            total = core.allreduce(np.ones(5, np.float32), name="gaps", op=1)
            assert total[0] == sum(1 for r in range(size) if r % 3)
        core.join()
        hvd.shutdown()
    print("through", rank)
"""
)


def test_every_collective_connects_the_ranks_that_it_needs(tmp_path):
    """Three hosts with two ranks each; two generations in one process."""
    path = write_script(tmp_path, EVERY_KIND)
    more = {"TFRING_X_MESH_LIMIT": "2", "TFRING_BIND_ADDR": "127.0.0.1"}
    done = run("-np", 6, sys.executable, path, 2, **more)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("through") == 6


LOST = (
    HOSTS
    + """
    import signal

    hvd.init()
    ones = np.ones(6, np.float32)
    core.allreduce(ones, name="first", op=1)
    if rank == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        core.alltoall(ones, name="to all")
    except core.CoreError as error:
        print(f"rank {rank}: {error}")
        sys.exit(3)
"""
)


def test_a_rank_that_dies_before_others_connect_to_it_is_named(tmp_path):
    path = write_script(tmp_path, LOST)
    more = {"TFRING_X_MESH_LIMIT": "2", "TFRING_BIND_ADDR": "127.0.0.1"}
    done = run("-np", 6, sys.executable, path, 1, **more)
    assert done.returncode != 0
    told = [line for line in done.stdout.splitlines() if "rank 3" in line]
    assert told, done.stdout + done.stderr


@pytest.mark.slow
def test_96_ranks(tmp_path):
    """On twelve hosts."""
    path = write_script(tmp_path, EVERY_KIND)
    done = run("-np", 96, sys.executable, path, 8, TFRING_BIND_ADDR="127.0.0.1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("through") == 96
