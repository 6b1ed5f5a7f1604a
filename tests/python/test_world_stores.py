"""Jobs whose processes find each other by the arguments of init: stores and init methods."""

from __future__ import annotations

import subprocess
import sys

import pytest
from bootstrap_jobs import free_port
from launcher_tools import LIMIT_SECONDS, environment, write_script

pytest.importorskip("tfring.runtime._native")

SCRIPT = """
    import os, sys
    import numpy as np
    import tfring as hvd
    from tfring.runtime._native import core
    from tfring.job.store import PrefixStore, TCPStore

    rank, path, tcp_port, store_port = int(sys.argv[1]), *sys.argv[2:]

    def job(name, **how):
        hvd.init(**how)
        assert (hvd.rank(), hvd.size(), hvd.local_rank()) == (rank, 2, rank), name
        total = core.allreduce(np.array([10.0**rank]), name=name, op=1)
        assert total[0] == 11.0, name
        hvd.shutdown()

    for number in range(2):
        job(f"file {number}", init_method=f"file://{path}", rank=rank, size=2)
    job("tcp", init_method=f"tcp://localhost:{tcp_port}?rank={rank}&size=2")
    job("env", init_method="env://")

    with TCPStore("localhost", int(store_port), is_master=rank == 0, world_size=2) as store:
        job("store", store=PrefixStore("job", store), rank=rank, size=2)
        # Rank 0 has deleted the keys; the server goes last.
        assert store.num_keys("job/") == 0 or rank == 1
        store.set(f"done {rank}", b"")
        store.wait(["done 0", "done 1"])
        if rank == 0:
            store.get("bye")
        else:
            store.set("bye", b"")

    hvd.init(init_method="file:///no/such/folder/x", rank=0, size=1)
    assert hvd.size() == 1
    hvd.shutdown()
    for how, words in (
        (dict(rank=0, size=2), "how the ranks meet"),
        (dict(init_method="env://", comm=[0]), "only one of them"),
        (dict(init_method="mpi://", rank=0, size=2), "none of env://"),
    ):
        try:
            hvd.init(**how)
        except ValueError as error:
            assert words in str(error), error
        else:
            raise AssertionError(how)
    assert not os.path.exists(path)
    assert "tensorflow" not in sys.modules and "mpi4py" not in sys.modules
"""


def test_jobs_without_a_launcher(tmp_path):
    script = write_script(tmp_path, SCRIPT)
    ports = [str(free_port()) for _ in range(3)]
    started = []
    for rank in range(2):
        variables = environment(
            RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="localhost", MASTER_PORT=ports[0]
        )
        command = [sys.executable, script, str(rank), str(tmp_path / "job"), *ports[1:]]
        started.append(subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True))
    try:
        said = [process.communicate(timeout=5 * LIMIT_SECONDS)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], "\n".join(said)
