"""Random kills of launchers, agents, ranks and whole hosts: see random_kills.py."""

from __future__ import annotations

import json
import os
import shutil

import pytest
import random_kills
import shard_kills

pytest.importorskip("tfring.runtime._native")

if os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("ip") is None:
    pytest.skip("needs namespaces: root, util-linux, iproute2", allow_module_level=True)

# Ranks, agents, launchers, a host and a coordinator are killed, in jobs of all kinds.
FEW = [
    ("static-hosts", 2),
    ("static-nodes", 3),
    ("elastic", 3),
    ("elastic-nodes", 4),
    ("elastic-coordinator", 2),
]
JOBS = 40
# Of ten kills each, in jobs whose optimizer states are sharded.
SHARDED_JOBS = 20


def check(folder, kind, seed):
    """Runs one job; fails if its weights, its end or its leftovers are wrong."""
    folder.mkdir()
    done = random_kills.isolated(seed, kind, folder)
    assert done["wrong"] == [], json.dumps(done, indent=1)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "seed"), FEW)
def test_a_few_processes_are_killed(tmp_path, kind, seed):
    check(tmp_path / "job", kind, seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1, JOBS + 1))
@pytest.mark.parametrize("kind", random_kills.KINDS)
def test_many_processes_are_killed(tmp_path, kind, seed):
    check(tmp_path / "job", kind, seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1, SHARDED_JOBS + 1))
def test_many_ranks_with_parts_of_states_are_killed(tmp_path, seed):
    check(tmp_path / "job", shard_kills.KIND, seed)
