"""A job that is restarted with a different number of ranks trains on each sample once per epoch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import launcher_tools as tools
import numpy as np
import pytest

pytest.importorskip("tfring.runtime._native")

EPOCHS, SAMPLES, BATCH = 3, 43, 8
STEPS = -(-SAMPLES // BATCH)
END = EPOCHS * STEPS

PROGRAM = f"""
    import contextlib, json, sys
    import keras, numpy as np
    import tfring.keras as hvd
    from tfring.checkpoint import Checkpointer

    folder, life, stop = sys.argv[1], sys.argv[2], int(sys.argv[3])
    hvd.init()
    hvd.set_random_seed(1)
    steps = []

    class Recorded(keras.Sequential):
        def train_step(self, data):
            steps.append(data[0].numpy()[:, 0].astype(int).tolist())
            return super().train_step(data)

    class Stop(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if len(steps) == stop:
                raise InterruptedError

    x = np.random.default_rng(2).normal(size=({SAMPLES}, 4)).astype("float32")
    x[:, 0] = np.arange({SAMPLES})
    model = Recorded([keras.Input((4,)), keras.layers.Dense(3, activation="tanh"),
                      keras.layers.Dense(1)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.02))
    model.compile(optimizer, "mse", run_eagerly=True)
    path = folder + "/" + life.rstrip("0123456789")
    checkpoints = Checkpointer(path, asynchronous=False)  # none is skipped
    saving = hvd.callbacks.CheckpointCallback(checkpoints, every_steps=2, every_epochs=None)
    data = hvd.shard((x, x[:, 1:2]), {BATCH} // hvd.size(), seed=3)
    with contextlib.suppress(InterruptedError):
        model.fit(data, epochs={EPOCHS}, verbose=0, callbacks=[*hvd.fit_callbacks(Stop()), saving])
    before = 0 if saving.position is None else saving.position.step
    with open(f"{{folder}}/{{life}}-{{hvd.rank()}}.json", "w") as file:
        json.dump([before, steps], file)
    if hvd.rank() == 0:
        np.savez(folder + "/" + life, *model.get_weights())
"""


@pytest.mark.slow
def test_one_two_and_four_ranks_in_turn(tmp_path: Path) -> None:
    script = tools.write_script(tmp_path, PROGRAM)

    def life(name: str, ranks: int, stop: int) -> tuple[int, list[set[int]]]:
        done = tools.run("-np", ranks, "python", script, tmp_path, name, stop)
        assert done.returncode == 0, done.stderr[-3000:]
        each = [json.loads((tmp_path / f"{name}-{r}.json").read_text()) for r in range(ranks)]
        parts: Any = zip(*(steps for _, steps in each), strict=True)
        return each[0][0], [{sample for part in step for sample in part} for step in parts]

    begun, clean = life("clean", 1, END)
    assert (begun, len(clean)) == (0, END)
    trained: list[set[int]] = []
    for number, (ranks, stop) in enumerate([(1, 5), (2, 5), (4, 5), (2, END)]):
        before, steps = life(f"turn{number}", ranks, stop)
        assert before == [0, 4, 8, 12][number]
        trained = trained[:before] + steps
    assert trained == clean
    for epoch in range(EPOCHS):
        samples = [s for step in trained[epoch * STEPS : (epoch + 1) * STEPS] for s in step]
        assert sorted(samples) == list(range(SAMPLES))
    mine, its = np.load(tmp_path / "turn3.npz"), np.load(tmp_path / "clean.npz")
    for name in its.files:
        np.testing.assert_allclose(mine[name], its[name], rtol=1e-6, atol=1e-6)
