"""`validation_split` beside hvd.shard: the refusal says what to write, and that is right."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import tfring.keras as hvd

ROWS, SPLIT = 40, 0.3


def network(optimizer: Any) -> Any:
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, activation="sigmoid")])
    model.compile(optimizer, "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc")])
    return model


def data() -> tuple[Any, Any]:
    x = np.random.default_rng(1).normal(size=(ROWS, 2)).astype("float32")
    return x, (x[:, :1] > 0.3).astype("float32")


def test_the_refusal_says_what_to_write() -> None:
    model = network(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    with pytest.raises(ValueError, match=r"n = int\(len\(x\) \* \(1 - 0.3\)\)\n.*n \+ hvd\.rank"):
        model.fit(hvd.shard(data(), 4), validation_split=SPLIT, verbose=0)
    with pytest.raises(ValueError, match="incompatible type") as refused:
        model.fit(iter(()), validation_split=SPLIT, verbose=0)
    assert "hvd.shard" not in str(refused.value)


def test_what_it_says_is_what_keras_does_in_one_process() -> None:
    x, y = data()
    size = hvd.size()
    alone = network(keras.optimizers.SGD(0.1))
    options: dict[str, Any] = {"epochs": 3, "verbose": 0}
    wanted = alone.fit(x, y, 4 * size, validation_split=SPLIT, shuffle=False, **options).history
    model = network(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    n = int(len(x) * (1 - SPLIT))
    mine = slice(n + hvd.rank(), None, size)
    history = model.fit(
        hvd.shard((x[:n], y[:n]), 4, seed=None),
        validation_data=(x[mine], y[mine]),
        callbacks=hvd.fit_callbacks(),
        **options,
    ).history
    for name, values in wanted.items():
        np.testing.assert_allclose(history[name], values, rtol=1e-4, err_msg=name)
