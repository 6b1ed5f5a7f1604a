"""set_random_seed: what ranks have in common and what is each one's own; the same in every run."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring.keras as hvd


@pytest.fixture(autouse=True)
def seeds_as_before() -> Iterator[None]:
    init = keras.random.SeedGenerator.__init__
    yield
    keras.random.SeedGenerator.__init__ = init
    keras.utils.set_random_seed(0)


def build() -> Any:
    return keras.Sequential(
        [
            keras.layers.Input((64,)),
            keras.layers.Dense(8),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(8),
            keras.layers.Dropout(0.5, seed=7),
        ]
    )


def weights_of(model: Any) -> Any:
    return [w.tolist() for w in model.get_weights() if w.dtype == np.float32]


def program(seed: int) -> dict[str, Any]:
    """What a program draws, in the order in which a training script would."""
    hvd.set_random_seed(seed)
    model = build()
    ones = tf.ones((4, 64))
    return {
        "weights": weights_of(model),
        "random": random.random(),
        "numpy": np.random.random(),
        "tensorflow": float(tf.random.normal([])),
        "shuffle": list(tf.data.Dataset.range(20).shuffle(20).as_numpy_iterator()),
        "given seed": model.layers[3](ones[:, :8], training=True).numpy().tolist(),
        "dropout": model.layers[1](ones, training=True).numpy().tolist(),
        "keras.random": float(keras.random.normal(())),
    }


@pytest.mark.parametrize("seed", [0, 42])
def test_weights_are_common_and_dropout_is_each_ranks_own(seed: int) -> None:
    mine = program(seed)
    assert program(seed) == mine, "another run draws other numbers"
    assert program(seed + 1)["weights"] != mine["weights"]
    everywhere = hvd.allgather_object(mine)
    own = {"dropout", "keras.random"}
    for what in mine:
        values = [repr(each[what]) for each in everywhere]
        assert len(set(values)) == (hvd.size() if what in own else 1), what
    keras.utils.set_random_seed(seed)
    assert weights_of(build()) == mine["weights"], "one process begins with other weights"


def test_dropout_differs_after_the_broadcast_and_weights_do_not() -> None:
    hvd.set_random_seed(3)
    layers = [keras.layers.Input((64,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(np.ones((8, 64), "f"), np.ones((8, 1), "f"), verbose=0, callbacks=[broadcast])
    hvd.assert_equal(model.trainable_variables)
    dropped = model.layers[0](tf.ones((4, 64)), training=True).numpy().tolist()
    assert len({repr(each) for each in hvd.allgather_object(dropped)}) == hvd.size()
