"""Programs of reports to PyTorch, here as they should have gone. docs/bug_reports.md lists them."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd


@pytest.mark.slow
def test_48188_a_broadcast_of_many_variables_beside_a_thread_that_reduces() -> None:
    rng = np.random.default_rng(hvd.rank())
    sizes = np.random.default_rng(1).integers(1, 2000, size=500)
    variables = [tf.Variable(rng.normal(size=size)) for size in sizes]
    wrong: list[float] = []

    def reduce() -> None:
        for step in range(100):
            total = hvd.allreduce(tf.fill([50], float(step)), op=hvd.Sum, name="report.48188")
            if (total != hvd.size() * step).numpy().any():
                wrong.append(step)

    thread = threading.Thread(target=reduce)
    thread.start()
    hvd.broadcast_variables(variables, 0)
    thread.join()
    assert not wrong
    rng = np.random.default_rng(0)
    for variable, size in zip(variables, sizes, strict=True):
        np.testing.assert_array_equal(variable, rng.normal(size=size))
