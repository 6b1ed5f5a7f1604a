"""evaluate: the ranks' parts together give what one process says of all the data."""

from __future__ import annotations

import warnings
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_cases import FEATURES

import tfring.keras as hvd


def parts() -> list[tuple[Any, Any]]:
    """Parts of different sizes, in several batches, the last of which is not full."""
    rng = np.random.default_rng(4)
    counts = [5 + 6 * rank for rank in range(hvd.size())]
    return [
        (rng.normal(size=(n, FEATURES)).astype("f"), rng.integers(0, 2, (n, 1)).astype("f"))
        for n in counts
    ]


@pytest.mark.any_ranks
def test_the_result_is_that_of_one_process() -> None:
    initializer = keras.initializers.GlorotUniform(seed=3)
    dense = keras.layers.Dense(1, activation="sigmoid", kernel_initializer=initializer)
    model = keras.Sequential([keras.layers.Input((FEATURES,)), dense])
    metrics = [keras.metrics.AUC(name="auc"), keras.metrics.Precision(name="precision")]
    model.compile("sgd", "binary_crossentropy", metrics=[*metrics, "accuracy"])
    everything = [np.concatenate(values) for values in zip(*parts(), strict=True)]
    whole = model.evaluate(*everything, verbose=0, return_dict=True)
    x, y = parts()[hvd.rank()]
    own = model.evaluate(x, y, verbose=0, return_dict=True)
    together = hvd.evaluate(model, x, y, batch_size=4)
    assert set(together) == {"loss", "auc", "precision", "accuracy"}
    assert together == pytest.approx(whole, rel=1e-5)
    assert hvd.size() == 1 or together != pytest.approx(own, rel=1e-3)
    assert all(each == together for each in hvd.allgather_object(together))
    # The metrics of this rank are as model.evaluate leaves them.
    assert {k: float(v) for k, v in model.get_metrics_result().items()} == pytest.approx(own)


def test_ranks_with_other_metrics_are_refused(several: int) -> None:
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"] if hvd.rank() else [])
    with pytest.raises(RuntimeError, match=r"rank 0: loss; rank 1: loss, mae"):
        hvd.evaluate(model, np.ones((1, 1)), np.ones((1, 1)))


@pytest.mark.parametrize("relative", [0.0, 1e-6, 1e-2])
def test_different_weights_are_a_warning(several: int, relative: float) -> None:
    model = keras.Sequential([keras.layers.Input((FEATURES,)), keras.layers.Dense(1)])
    kernel = model.layers[0].kernel
    kernel.assign(np.ones(kernel.shape) * (1.0 + relative * hvd.rank()))
    model.compile("sgd", "mse")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hvd.evaluate(model, *parts()[hvd.rank()])
    texts = [str(w.message) for w in caught if "hvd.evaluate" in str(w.message)]
    assert len(texts) == (hvd.rank() == 0 and relative == 1e-2)
    assert all("kernel" in t and "hvd.broadcast_variables(model.weights, 0)" in t for t in texts)


def test_layers_that_ranks_have_adapted_apart_are_a_warning(several: int) -> None:
    words = [keras.layers.TextVectorization(name="words", output_mode="multi_hot", max_tokens=9)]
    words[0].adapt(np.array([f"w{hvd.rank()} x"]))
    model = keras.Sequential([keras.Input((), dtype="string"), *words, keras.layers.Dense(1)])
    model.layers[-1].kernel.assign(np.ones(model.layers[-1].kernel.shape))
    model.compile("sgd", "mse")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hvd.evaluate(model, tf.constant(["w0"]), np.ones((1, 1)))
    texts = [str(w.message) for w in caught if "hvd.evaluate" in str(w.message)]
    assert len(texts) == (hvd.rank() == 0)
    assert all("'words'" in t and "hvd.adapt" in t for t in texts)
