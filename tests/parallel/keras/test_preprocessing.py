"""Preprocessing layers: the ranks compute the same things, whoever has assigned their weights."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tiers import cases

import tfring.keras as hvd
from tfring.collectives.objects import allgather_object
from tfring.elastic.tensorflow_state import TensorFlowKerasState

pytestmark = pytest.mark.usefixtures("eager_functions")


def numbers(rank: int) -> Any:
    return np.random.default_rng(rank).normal(5 + 9 * rank, 1 + rank, (40, 2)).astype(np.float32)


def words(rank: int) -> Any:
    drawn = np.random.default_rng(rank).choice([f"w{i}" for i in range(9)], (30, 3))
    return np.array([" ".join([f"own{rank}", *row]) for row in drawn])


def values(layer: Any) -> list[Any]:
    """What a layer makes of a few inputs that all ranks have."""
    if isinstance(layer, keras.layers.TextVectorization):
        return np.asarray(layer(tf.constant(["own0 w1 w2", "own1 w3 w0"]))).tolist()
    if isinstance(layer, keras.layers.StringLookup):
        return np.asarray(layer(tf.constant([["own0 w1"], ["w2"]]))).tolist()
    if isinstance(layer, keras.layers.IntegerLookup):
        return np.asarray(layer(np.arange(20))).tolist()
    return np.asarray(layer(np.float32([[1, 2], [8, 15]]))).tolist()


def model_with(layer: Any) -> Any:
    """A model that holds the layer, which its data passes or not."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    if isinstance(layer, keras.layers.Normalization):
        model = keras.Sequential([keras.Input((2,)), layer, keras.layers.Dense(1)])
    model.extra = [layer]
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(1e-4)), "mse", jit_compile=False)
    return model


def fit(model: Any) -> list[str]:
    """Trains; returns what is said of layers that differ."""
    x = numbers(hvd.rank())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(x, x[:, :1], batch_size=8, verbose=0, callbacks=hvd.fit_callbacks())
    return [str(w.message) for w in caught if "hvd.adapt" in str(w.message)]


def make(kind: str) -> tuple[Any, Any]:
    """A layer, and what makes a rank's part of the data for it."""
    if kind == "normalization":
        return keras.layers.Normalization(), numbers
    if kind == "discretization":
        return keras.layers.Discretization(num_bins=4, epsilon=0.001), numbers
    if kind == "integers":
        return keras.layers.IntegerLookup(), lambda rank: numbers(rank).astype(np.int64)
    if kind == "strings":
        return keras.layers.StringLookup(), words
    mode = {"tf_idf": "tf_idf", "text": "int"}[kind]
    return keras.layers.TextVectorization(output_mode=mode), words


KINDS = ["normalization", "discretization", "integers", "strings", "text", "tf_idf"]
QUICK = ["normalization", "strings", "tf_idf"]


@pytest.mark.parametrize("kind", cases(KINDS, quick=QUICK))
def test_layers_adapted_to_other_data_are_made_equal_and_named(several: int, kind: str) -> None:
    layer, data = make(kind)
    layer.adapt(data(hvd.rank()))
    right = allgather_object(values(layer))[0]
    said = fit(model_with(layer))
    assert values(layer) == right
    assert len(said) == (hvd.rank() == 0)


@pytest.mark.parametrize("kind", cases(KINDS, quick=QUICK))
def test_adapting_on_rank_0_alone_is_enough(several: int, kind: str) -> None:
    layer, data = make(kind)
    if hvd.rank() == 0:
        layer.adapt(data(0))
    model = model_with(layer)
    said = fit(model)
    found = allgather_object(values(layer))
    assert found == [found[0]] * hvd.size()
    assert not said


@pytest.mark.any_ranks
@pytest.mark.parametrize(
    ("kind", "as_dataset"), [*((kind, False) for kind in KINDS), ("normalization", True)]
)
def test_adapt_is_that_of_one_process_with_all_data(kind: str, as_dataset: bool) -> None:
    layer, data = make(kind)
    mine = data(hvd.rank())[: 20 + hvd.rank()]
    hvd.adapt(layer, tf.data.Dataset.from_tensor_slices(mine).batch(8) if as_dataset else mine)
    alone, _ = make(kind)
    alone.adapt(np.concatenate([data(rank)[: 20 + rank] for rank in range(hvd.size())]))
    np.testing.assert_allclose(values(layer), values(alone), rtol=1e-5)


def test_what_adapt_refuses(several: int) -> None:
    with pytest.raises(TypeError, match="not Dense"):
        hvd.adapt(keras.layers.Dense(1), [1.0])
    wrong = numbers(0) if hvd.rank() else object()
    with pytest.raises(RuntimeError, match="rank 0 cannot adapt layer"):
        hvd.adapt(keras.layers.Normalization(), wrong)


def adapted_on(rank: int) -> tuple[Any, Any]:
    layer = keras.layers.Normalization()
    if hvd.rank() == rank:
        layer.adapt(numbers(rank))
    return layer, model_with(layer)


def test_a_broadcast_of_weights_reaches_what_normalization_computes_with(several: int) -> None:
    layer, model = adapted_on(0)
    hvd.broadcast_variables(model.weights, root_rank=0)
    np.testing.assert_allclose(np.array(layer.mean)[0], numbers(0).mean(axis=0), rtol=1e-5)


@pytest.mark.any_ranks
def test_an_elastic_restore_reaches_what_normalization_computes_with() -> None:
    layer = keras.layers.Normalization()
    layer.adapt(numbers(0))
    state = TensorFlowKerasState(model_with(layer))
    layer.adapt(numbers(1))
    state.restore()
    np.testing.assert_allclose(np.array(layer.mean)[0], numbers(0).mean(axis=0), rtol=1e-5)


def test_a_checkpoint_restores_what_normalization_computes_with(
    several: int, tmp_path: Path
) -> None:
    folder = allgather_object(str(tmp_path))[0]
    x = numbers(0)
    for epochs in (1, 2):
        keras.utils.clear_session()  # the second model has the names of the first
        keras.utils.set_random_seed(epochs)
        layer = keras.layers.Normalization()
        if epochs == 1:
            layer.adapt(x)
        else:
            layer.build((None, 2))
        model = model_with(layer)
        callback = hvd.callbacks.CheckpointCallback(folder)
        model.fit(x, x[:, :1], epochs=epochs, verbose=0, callbacks=[callback])
        np.testing.assert_allclose(np.array(layer.mean)[0], x.mean(axis=0), rtol=1e-5)
