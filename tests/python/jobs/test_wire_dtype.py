"""Sums of float32 that are sent with 16 bits between two hosts."""

from __future__ import annotations

import json

import pytest
from launcher_tools import LIMIT_SECONDS, write_script
from network_namespaces import hosts

pytest.importorskip("tfring.runtime._native")

SCRIPT = """
    import hashlib, json
    import numpy as np
    from tfring.runtime import topology
    from tfring import world
    from tfring.runtime._native import core

    world.init()
    assert topology.local_size() == 1
    random = np.random.default_rng(topology.rank())
    ends = {}
    for elements in (1, 1000, 100_000, 1_000_001):
        values = random.uniform(-1, 2, elements).astype(np.float32)
        total = core.allreduce(values, name=f"sum.{elements}", op=1)
        ends[str(elements)] = hashlib.sha256(total.tobytes()).hexdigest()
    little = 1 + 2**-10  # nothing of it is left of bfloat16's 8 bits
    for name in ("float32", "float64"):
        values = np.full(5000, little, name)
        ends[name] = float(core.allreduce(values, name=name, op=1)[4999])
    print(json.dumps(ends), flush=True)
"""


def test_hosts_get_the_same_bits(tmp_path):
    """Rank 0's setting counts, whatever the environment of other ranks says."""
    path = write_script(tmp_path, SCRIPT)
    with hosts(2) as made:
        jobs = [
            made.start(0, path, TFRING_X_WIRE_DTYPE="bfloat16"),
            made.start(1, path, TFRING_X_WIRE_DTYPE="float16"),
        ]
        try:
            found = [job.communicate(timeout=LIMIT_SECONDS) for job in jobs]
        finally:
            for job in jobs:
                job.kill()
    assert [job.returncode for job in jobs] == [0, 0], found
    ends = [json.loads(out) for out, _ in found]
    assert ends[0] == ends[1]
    assert (ends[0]["float64"], ends[0]["float32"]) == (2 * (1 + 2**-10), 2.0)
