"""`python -m tfring.demo` trains on two ranks and compares them with one process."""

from __future__ import annotations

import re
import sys

import pytest
from launcher_tools import run, run_python

from tfring.launch.doctor import TRAINED


@pytest.mark.slow
def test_two_ranks_get_the_weights_of_one_process():
    done = run_python("-m", "tfring.demo")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("tfring run -np 2 ")
    assert TRAINED.search(done.stdout)  # what `tfring doctor --run` shows
    right = re.search(r"2 ranks trained a model: ([\d.]+)% of", done.stdout)
    assert right and float(right[1]) > 85, done.stdout
    assert "The weights of the ranks are equal. Those of one process" in done.stdout
    assert "with the same batches are the same" in done.stdout


@pytest.mark.slow
def test_another_order_of_the_samples_gives_other_weights():
    code = (
        "import sys, tfring.demo as demo; shard = demo.hvd.shard; "
        "demo.hvd.shard = lambda data, size, seed: shard(data, size, seed=7); sys.exit(demo.main())"
    )
    done = run("-np", 1, sys.executable, "-c", code)
    assert done.returncode == 1
    assert "with the same batches are DIFFERENT" in done.stdout
