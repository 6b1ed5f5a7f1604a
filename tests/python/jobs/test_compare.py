"""`tfring run --compare 1,2`: where a program on two ranks parts from the same on one."""

import sys

import launcher_tools as tools
import numpy as np
import pytest
from tiers import slow

from tfring.training.comparison.runs import compare_runs

PROGRAM = """
    import keras, numpy as np
    import tfring.keras as hvd

    hvd.init()
    hvd.set_random_seed(1)
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


BATCH_NORM = """
    import keras, numpy as np
    import tfring.keras as hvd

    hvd.init()
    hvd.set_random_seed(1)
    x = np.random.normal(size=(96, 4)).astype("float32")
    norm = (keras.layers if "plain" in sys.argv else hvd).{layer}
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(8, name="before"), norm(name="n"),
         keras.layers.Dense(3)]
    )
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    data = hvd.shard((x, x[:, :3] + 1), 24 // hvd.size(), seed=3)
    model.fit(data, epochs=9, verbose=0, callbacks=hvd.fit_callbacks())
"""


@pytest.mark.slow
@pytest.mark.parametrize("layer", ["SyncBatchNormalization", "BatchNormalization"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_batch_normalization(tmp_path, layer, ranks):
    """The gradient of a bias before it is all rounding; with each rank's own batch it is named."""
    program = BATCH_NORM.replace("{layer}", layer)
    script = tools.write_script(tmp_path, program, header="import sys\n")
    plain = ["plain"] if layer == "BatchNormalization" else []
    options = ["--compare", f"1,{ranks}", "--compare-steps", 6, sys.executable, script, *plain]
    done = tools.run(*options)
    last = done.stdout.splitlines()[-1]
    if plain:
        assert done.returncode == 1
        assert "BatchNormalization ('n')" in last and "use hvd.SyncBatchNormalization" in last
    else:
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        assert f"1 rank and {ranks} ranks: 6 steps: equal weights" in last


def write_runs(folder, start, ends):
    names = ("1 rank", "2 ranks")
    for name, end in zip(names, ends, strict=True):
        (folder / name).mkdir(parents=True)
        (folder / name / "batch_norms").write_text("")
        for step, values in enumerate((start, end)):
            arrays = {
                f"{i:06d} v{i}": np.asarray(each, np.float32) for i, each in enumerate(values)
            }
            np.savez(folder / name / f"step-{step:06d}.npz", **arrays)
    return compare_runs(folder / names[0], folder / names[1], names)


def test_differences_are_relative_to_what_the_model_changes(tmp_path):
    """Noise in one weight is none of the model's; a wrong rate is one where weights are large."""
    noise = write_runs(tmp_path / "noise", [[0.5], [0.0]], [[[0.51], [1e-9]], [[0.51], [-1e-9]]])
    assert noise.equal, noise.text
    wrong = write_runs(tmp_path / "wrong", [[0.5], [0.0]], [[[0.51], [1e-3]], [[0.51], [2e-3]]])
    assert not wrong.equal and "after step 1 v1 at [0] is 0.001" in wrong.text
    rate = write_runs(tmp_path / "rate", [[1.0]], [[[1.0001]], [[1.0002]]])
    assert not rate.equal and "after step 1 v0 at [0] is 1.0001" in rate.text
    rounding = write_runs(tmp_path / "rounding", [[1.0]], [[[1.000001]], [[1.0000011]]])
    assert rounding.equal, rounding.text
