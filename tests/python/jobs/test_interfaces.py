"""The network interface that NCCL uses."""

from __future__ import annotations

import sys

import pytest
from launcher_tools import LIMIT_SECONDS, run, write_script
from network_namespaces import hosts

pytest.importorskip("tfring.runtime._native")

SCRIPT = """
    import os
    from tfring import world

    world.init()
    print("NCCL", os.environ.get("NCCL_SOCKET_IFNAME"))
    world.shutdown()
"""


@pytest.mark.parametrize(("given", "used"), [({}, "=eth0"), ({"NCCL_SOCKET_IFNAME": "ib"}, "ib")])
def test_nccl_uses_the_interface_of_the_job_unless_told(tmp_path, given, used):
    path = write_script(tmp_path, SCRIPT)
    with hosts(2) as made:
        jobs = [made.start(host, path, **given) for host in range(2)]
        try:
            found = [job.communicate(timeout=LIMIT_SECONDS) for job in jobs]
        finally:
            for job in jobs:
                job.kill()
    assert [out.split() for out, _ in found] == [["NCCL", used]] * 2, found


def test_one_host_leaves_nccl_its_choice(tmp_path):
    done = run("-np", 2, sys.executable, write_script(tmp_path, SCRIPT))
    assert done.stdout.count("NCCL None") == 2, done.stderr
