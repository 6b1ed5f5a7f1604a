"""A model whose optimizer does not fit one rank's memory trains on four with shard_states=True."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import launcher_tools as tools
import pytest
from limited_memory import enter, limited_groups

# An embedding of 41 million weights, of which a step uses few. All ranks together have the batches
# of one process.
TRAINING = """
import sys
import keras, numpy as np
import tfring.keras as hvd

ROWS, BATCH, STEPS = 640_000, 32, 3
hvd.init()
way, file = sys.argv[1:]
keras.utils.set_random_seed(1)
layers = keras.layers.Embedding(ROWS, 64), keras.layers.Flatten(), keras.layers.Dense(1)
model = keras.Sequential([keras.Input((4,), dtype="int32"), *layers])
optimizer = keras.optimizers.Adam(0.01)
model.compile(hvd.DistributedOptimizer(optimizer, shard_states=way == "sharded"), "mse")
x = np.random.default_rng(1).integers(0, ROWS, (STEPS, BATCH, 4))
used = np.unique(x[0])
before = model.layers[0].embeddings.numpy()[used]
x, y = (np.array_split(rows, hvd.size(), axis=1)[hvd.rank()] for rows in (x, x[:, :, :1] % 7))
for rows, labels in zip(x, y):
    model.fit(rows, labels, batch_size=len(rows), verbose=0)

table = model.layers[0].embeddings.numpy()
if way == "reference":
    np.save(file, table)
    assert np.abs(table[used] - before).mean() > 1e-3, "the steps have not changed their rows"
else:
    known = np.load(file, mmap_mode="r")
    pairs = zip(np.array_split(table, 64), np.array_split(known, 64))
    assert max(np.abs(ours - theirs).max() for ours, theirs in pairs) <= 1e-6
print("DONE")
"""
MEBIBYTES = 940
WITHOUT_ONEDNN = {"TF_ENABLE_ONEDNN_OPTS": "0"}


def in_groups(prefix: str, ranks: int, *arguments: Any) -> Any:
    """Runs a job whose ranks have a group each."""
    entering = enter(f"{prefix}.$TFRING_X_RANK")
    return tools.run("-np", ranks, *entering, sys.executable, *arguments, **WITHOUT_ONEDNN)


@pytest.mark.slow
def test_states_that_do_not_fit_one_rank_are_trained_by_four(tmp_path: Path) -> None:
    """The limit lies between what a rank needs with whole states and with parts.

    docs/sharded_states.md has what was measured without a limit.
    """
    path, known = tools.write_script(tmp_path, TRAINING), tmp_path / "table.npy"
    done = tools.run("-np", 1, sys.executable, path, "reference", known, **WITHOUT_ONEDNN)
    assert done.returncode == 0, done.stderr
    with limited_groups(4, MEBIBYTES) as prefix:
        for ranks in (1, 4):
            done = in_groups(prefix, ranks, path, "plain", known)
            assert done.returncode == 137, done.stdout + done.stderr
            assert re.search(r"Rank \d was killed: .*out of memory", done.stderr), done.stderr
        done = in_groups(prefix, 4, path, "sharded", known)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("DONE") == 4
