"""A user's training is killed again and again, with the result of a clean run: user_kills.py."""

from __future__ import annotations

import os
import shutil

import pytest
import user_kills

pytest.importorskip("tfring.runtime._native")

if os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("ip") is None:
    pytest.skip("needs namespaces: root, util-linux, iproute2", allow_module_level=True)

KILLS_PER_JOB, JOBS = 25, 4


def check(folder, ranks, kills, seeds):
    """Compares a job of each seed with an undisturbed one."""
    clean = user_kills.isolated(ranks, 0, 0, folder / "clean")
    assert clean["wrong"] == []
    assert len(clean["ends"]) == ranks
    for seed in seeds:
        found = user_kills.isolated(ranks, kills, seed, folder / f"job{seed}")
        assert user_kills.differences(found, clean) == [], found["killed"]
        assert found["killed"]


@pytest.mark.slow
def test_a_training_is_killed_a_few_times(tmp_path):
    check(tmp_path, 2, 3, [5])


@pytest.mark.soak
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_training_is_killed_again_and_again(tmp_path, ranks):
    check(tmp_path, ranks, KILLS_PER_JOB, range(1, JOBS + 1))
