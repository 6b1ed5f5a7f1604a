"""What four ranks save with shard_states=True is loaded by other numbers of ranks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import launcher_tools as tools
import numpy as np
import pytest

KINDS = ("Adam", "Adafactor")
# All ranks have the same data: so their number changes nothing but rounding. No weight has parts of
# equal size.
TRAINING = f"""
import sys
import keras, numpy as np
import tfring.keras as hvd

hvd.init()
folder, saves = sys.argv[1], len(sys.argv) > 2
x = np.random.default_rng(1).normal(size=(8, 7)).astype("float32")
y = x[:, :3] ** 2

def train(model, *callbacks):
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0, callbacks=callbacks)

def save(model, name):
    hvd.save_model(model, f"{{folder}}/{{kind}}.{{name}}.keras")

for kind in {KINDS!r}:
    keras.utils.set_random_seed(1)
    layers = keras.layers.Dense(5, "tanh"), keras.layers.Dense(3)
    model = keras.Sequential([keras.Input((7,)), *layers])
    optimizer = getattr(keras.optimizers, kind)(0.05)
    model.compile(hvd.DistributedOptimizer(optimizer, shard_states=True), "mse")
    checkpoint = f"{{folder}}/{{kind}}.checkpoint"
    if saves:
        train(model, *hvd.fit_callbacks(checkpoint=checkpoint))
        save(model, "saved")
        train(model)
        save(model, "trained")
        continue
    loaded = hvd.load_model(f"{{folder}}/{{kind}}.saved.keras")
    save(loaded, f"loaded.{{hvd.size()}}")
    assert hvd.restore_checkpoint(checkpoint, model).step == 2
    save(model, f"restored.{{hvd.size()}}")
    for how, each in (("loaded", loaded), ("restored", model)):
        train(each)
        save(each, f"{{how}}.trained.{{hvd.size()}}")
print("DONE")
"""


def run(ranks: int, *arguments: Any) -> None:
    done = tools.run("-np", ranks, sys.executable, *arguments)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert done.stdout.count("DONE") == ranks


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What four ranks have saved: models, checkpoints, and the models after more steps."""
    made = tmp_path_factory.mktemp("saved")
    run(4, tools.write_script(made, TRAINING), made, "save")
    return made


def values(file: Path) -> list[Any]:
    """All weights and states in a saved model."""
    import keras  # takes seconds, and `make test` leaves this file out

    model = keras.saving.load_model(file)
    return [v.numpy() for v in (*model.weights, *model.optimizer.variables)]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_other_numbers_of_ranks_go_on_from_what_four_have_saved(folder: Path, ranks: int) -> None:
    run(ranks, folder / "script.py", folder)
    for kind in KINDS:
        saved, trained = (values(folder / f"{kind}.{name}.keras") for name in ("saved", "trained"))
        for how in ("loaded", "restored"):
            again = values(folder / f"{kind}.{how}.{ranks}.keras")
            for ours, theirs in zip(again, saved, strict=True):
                np.testing.assert_array_equal(ours, theirs)
            on = values(folder / f"{kind}.{how}.trained.{ranks}.keras")
            for ours, theirs in zip(on, trained, strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
