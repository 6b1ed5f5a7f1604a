"""Models saved from distributed training: loaded by load_model and wrapped, or by plain Keras."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras_cases import (
    assert_same_on_all_ranks,
    assert_same_weights,
    broadcast,
    build_model,
    fit,
    loss,
    train_together,
)

import tfring.keras as hvd
from tfring.keras.gradient_hook import find_hook

pytestmark = pytest.mark.usefixtures("eager_functions")

# Loads argv[1] where tfring cannot be imported, trains a step and says what it got.
PLAIN_KERAS = """
import json, sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "tfring":
            raise ImportError("tfring is not installed")
sys.meta_path.insert(0, Blocked())
import keras, numpy as np
model = keras.saving.load_model(sys.argv[1])
x = np.ones((2, 8), dtype="float32")
before = model(x).numpy().tolist()
iterations = int(model.optimizer._iterations)
state = [np.asarray(v).tolist() for v in model.optimizer.variables[2:]]
model.fit(x, np.zeros(2), verbose=0)
print(json.dumps([type(model.optimizer).__module__, iterations, before, state]))
"""

OPTIMIZERS: dict[str, Any] = {
    "adam": lambda: keras.optimizers.Adam(1e-2),
    "accumulation": lambda: keras.optimizers.SGD(
        0.1, momentum=0.9, gradient_accumulation_steps=2, use_ema=True
    ),
}


def saved(optimizer: Any, path: Path) -> Any:
    """A model after three steps, which every rank has written to `path`."""
    model = train_together(optimizer, steps=3, seed=9)
    model.save(path)
    return model


def go_on(model: Any) -> None:
    """Three more steps with the batches of before."""
    fit(model, broadcast())


@pytest.mark.parametrize(
    ("name", "suffix"),
    [
        ("adam", ".keras"),
        ("accumulation", ".h5"),
    ],
)
def test_a_loaded_model_goes_on_as_if_never_saved(name: str, suffix: str, tmp_path: Path) -> None:
    model = saved(OPTIMIZERS[name](), tmp_path / f"model{suffix}")
    loaded = hvd.load_model(tmp_path / f"model{suffix}")
    assert find_hook(loaded.optimizer) is not None
    assert int(loaded.optimizer._iterations) == 3
    for ours, theirs in zip(loaded.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    go_on(model)
    go_on(loaded)
    assert_same_weights(loaded, model.get_weights(), tolerance=1e-6)
    assert_same_on_all_ranks(loaded)


@pytest.mark.slow
def test_plain_keras_loads_it_where_tfring_is_not_installed(tmp_path: Path) -> None:
    path = tmp_path / "model.keras"
    model = saved(OPTIMIZERS["accumulation"](), path)
    if hvd.rank() != 0:
        return
    done = subprocess.run(
        [sys.executable, "-c", PLAIN_KERAS, str(path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    module, iterations, outputs, state = json.loads(done.stdout.splitlines()[-1])
    assert module.startswith("keras.")
    assert iterations == 3
    np.testing.assert_allclose(model(np.ones((2, 8), "float32")), outputs, rtol=1e-6)
    for ours, theirs in zip(model.optimizer.variables[2:], state, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-6)


def test_optimizers_that_keras_does_not_know(tmp_path: Path) -> None:
    class Unregistered(keras.optimizers.SGD):
        """Nothing leads to it from outside of this function."""

    path = tmp_path / "model.keras"
    saved(Unregistered(0.1), path)
    with pytest.raises((TypeError, ValueError), match=r"(?i)unregistered"):
        hvd.load_model(path)
    with pytest.warns(UserWarning, match="legacy_opts"):
        loaded = hvd.load_model(path, custom_optimizers=[Unregistered], legacy_opts=True)
    assert type(loaded.optimizer) is Unregistered
    assert type(hvd.load_model(path, custom_objects={"Unregistered": Unregistered}).optimizer) is (
        Unregistered
    )
    go_on(loaded)
    assert_same_on_all_ranks(loaded)


def test_under_loss_scaling_the_scale_is_kept(tmp_path: Path) -> None:
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = saved(keras.optimizers.SGD(0.1), tmp_path / "model.keras")
        loaded = hvd.load_model(tmp_path / "model.keras")
    finally:
        keras.mixed_precision.set_global_policy("float32")
    assert isinstance(loaded.optimizer, keras.optimizers.LossScaleOptimizer)
    assert find_hook(loaded.optimizer) is not None
    assert float(loaded.optimizer.dynamic_scale) == float(model.optimizer.dynamic_scale)
    go_on(loaded)
    assert_same_on_all_ranks(loaded)


def test_a_model_that_was_not_compiled_stays_so(tmp_path: Path) -> None:
    build_model(1).save(tmp_path / "model.keras")
    assert not hvd.load_model(tmp_path / "model.keras").compiled


def test_a_model_that_only_rank_0_has_loaded(several: int, tmp_path: Path) -> None:
    """The others build theirs; all go on from the file, or learn what is wrong."""
    path = tmp_path / "model.keras"
    saved(keras.optimizers.Adam(1e-2), path)

    def fresh(optimizer: Any = None, **options: Any) -> Any:
        model = build_model(seed=hvd.rank())
        optimizer = optimizer or keras.optimizers.Adam(1e-3)
        model.compile(hvd.DistributedOptimizer(optimizer, **options), loss())
        return model

    def expect(model: Any, *parts: str) -> None:
        with pytest.raises(RuntimeError) as error:
            fit(model, broadcast(), steps=1)
        assert all(part in str(error.value) for part in parts), error.value

    model = hvd.load_model(path) if hvd.rank() == 0 else fresh()
    go_on(model)
    assert_same_on_all_ranks(model)
    expected = hvd.load_model(path)
    go_on(expected)
    assert_same_weights(model, expected.get_weights(), tolerance=1e-6)
    assert int(model.optimizer.iterations) == 6

    other = keras.optimizers.SGD(0.1)
    expect(
        hvd.load_model(path) if hvd.rank() == 0 else fresh(other),
        f"rank {hvd.rank()}: the ranks differ in the class of optimizer (rank 0: Adam, rank 1: SGD",
        "that of the file where one has loaded it",
    )
    # After all have trained: the others go on with the optimizer that they have.
    again = hvd.load_model(path)
    assert hvd.rank() != 0 or find_hook(again.optimizer).name
    expect(
        again if hvd.rank() == 0 else model,
        "the ranks differ in the name of optimizer (rank 0: tfring.optimizer.",
        "optimizers without name= are numbered in the order of use",
        "Pass the same name= to DistributedOptimizer and load_model on every rank",
    )
    assert find_hook(again.optimizer).name  # the number that rank 0 has taken
    named = fresh(name="resumed")
    go_on(named)
    named = hvd.load_model(path, name="resumed") if hvd.rank() == 0 else named
    go_on(named)
    assert_same_on_all_ranks(named)
