"""`tfring run --compare 1,2`: where a program on two ranks parts from the same on one."""

import sys

import launcher_tools as tools
import numpy as np
import pytest
from tiers import slow

from tfring.comparison.runs import compare_runs

PROGRAM = """
    import keras, numpy as np
    import tfring.keras as hvd

    hvd.init()
    hvd.set_seed(1)
    x = np.random.normal(size=(96, 4)).astype("float32")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="d")])
    rate = 0.1 * (hvd.size() if "scaled" in sys.argv else 1)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(rate, momentum=0.9)), "mse")
    data = hvd.shard((x, x[:, :3] + 1), 24 // hvd.size(), seed=3)
    model.fit(data, epochs=9, verbose=0, callbacks=hvd.fit_callbacks())
    print("steps", int(model.optimizer.iterations))
"""


@pytest.mark.parametrize("scaled", [slow(False), True])
def test_one_rank_and_two(tmp_path, scaled):
    script = tools.write_script(tmp_path, PROGRAM, header="import sys\n")
    arguments = ["scaled"] if scaled else []
    options = ["--compare", "1,2", "--compare-steps", 6, sys.executable, script, *arguments]
    done = tools.run(*options)
    assert done.returncode == scaled, done.stdout[-2000:] + done.stderr[-4000:]
    assert done.stdout.count("steps 6") == 3
    last = done.stdout.splitlines()[-1]
    if scaled:
        assert "1 rank and 2 ranks: after step 1 sequential/d/kernel at [" in last
        assert "with 1 rank and" in last and "the same rate" in last
    else:
        assert "1 rank and 2 ranks: 6 steps: equal weights" in last


def test_what_cannot_be_compared(tmp_path):
    for wrong in ("1", "1,x", "0,2"):
        done = tools.run("--compare", wrong, "true")
        assert done.returncode == 2 and "two numbers of ranks" in done.stderr
    names = ("1 rank", "2 ranks")
    outcome = compare_runs(tmp_path / "a", tmp_path / "b", names)
    assert not outcome.equal and "1 rank recorded no step" in outcome.text
    for folder, values in (("a", [1.0, 2.0]), ("b", [1.0, np.nan])):
        (tmp_path / folder).mkdir()
        np.savez(tmp_path / folder / "step-000000.npz", **{"000000 d|kernel": np.array(values)})
    outcome = compare_runs(tmp_path / "a", tmp_path / "b", names)
    assert not outcome.equal and "before the first step d/kernel at [1]" in outcome.text
