"""SyncBatchNormalization against BatchNormalization on the samples of all ranks together."""

from __future__ import annotations

import inspect
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_cases import PER_RANK, assert_same_on_all_ranks

import tfring
import tfring.keras as hvd

TOLERANCE = {"float32": 2e-5, "float64": 1e-12, "float16": 1e-2, "bfloat16": 8e-2}


def rows_of_ranks(counts: list[int]) -> slice:
    start = sum(counts[: hvd.rank()])
    return slice(start, start + counts[hvd.rank()])


def differentiated(layer: Any, values: Any, weights: Any, mask: Any = None) -> list[Any]:
    """Outputs in training, and the gradients of their weighted sum: inputs, gamma, beta."""
    x = tf.convert_to_tensor(values)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x, training=True, mask=mask)
        total = tf.reduce_sum(y * tf.cast(weights, y.dtype))
    sources = [x, layer.gamma.value, layer.beta.value]
    return [tf.cast(t, tf.float64).numpy() for t in (y, *tape.gradient(total, sources))]


def compare(values: Any, mask: Any, counts: list[int], **kwargs: Any) -> tuple[Any, Any]:
    """Runs both layers twice; what belongs to the weights is summed over the ranks."""
    mine = rows_of_ranks(counts)
    weights = np.random.default_rng(5).normal(size=values.shape)
    sync, plain = hvd.SyncBatchNormalization(**kwargs), keras.layers.BatchNormalization(**kwargs)
    tolerance = TOLERANCE[keras.backend.standardize_dtype(values.dtype)]
    for _ in range(2):
        ours = differentiated(
            sync, values[mine], weights[mine], None if mask is None else mask[mine]
        )
        theirs = differentiated(plain, values, weights, mask)
    for our, their in zip(ours[:2], theirs[:2], strict=True):
        np.testing.assert_allclose(our, their[mine], atol=tolerance, rtol=tolerance)
    for our, their in zip(ours[2:], theirs[2:], strict=True):
        total = hvd.allreduce(our, op=hvd.Sum).numpy()
        np.testing.assert_allclose(total, their, atol=50 * tolerance, rtol=50 * tolerance)
    for our, their in zip(sync.weights, plain.weights, strict=True):
        np.testing.assert_allclose(our.numpy(), their.numpy(), rtol=1e-4, atol=1e-6)
    return sync, plain


@pytest.mark.any_ranks
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_dtypes(dtype: str) -> None:
    counts = [PER_RANK] * hvd.size()
    values = np.random.default_rng(1).normal(2.0, 3.0, size=(sum(counts), 5))
    layer_dtype = {"float16": "mixed_float16", "bfloat16": "mixed_bfloat16"}.get(dtype, dtype)
    cast = tf.cast(values, dtype)
    layer, _ = compare(cast, None, counts, dtype=layer_dtype)
    assert_same_on_all_ranks(layer)


@pytest.mark.any_ranks
@pytest.mark.parametrize("axis", [-1, 1])
def test_uneven_batches_of_images_weigh_by_their_samples(axis: int) -> None:
    counts = [1 + 3 * i for i in range(hvd.size())]
    shape = (sum(counts), 3, 4, 2)
    layer, _ = compare(
        np.random.default_rng(2).normal(size=shape).astype("float32"), None, counts, axis=axis
    )
    assert_same_on_all_ranks(layer)


@pytest.mark.any_ranks
def test_a_rank_without_samples_weighs_nothing() -> None:
    counts = [4] + [0] * (hvd.size() - 1)
    values = np.random.default_rng(3).normal(size=(4, 3)).astype("float32")
    compare(values, None, counts)


def test_a_large_mean_costs_no_precision() -> None:
    counts = [8] * hvd.size()
    values = np.random.default_rng(4).normal(4096.0, 1.0, size=(sum(counts), 3)).astype("float32")
    mine = rows_of_ranks(counts)
    layer = hvd.SyncBatchNormalization(momentum=0.0, epsilon=1e-6)
    layer(values[mine], training=True)
    exact = values.astype("float64").var(axis=0)
    np.testing.assert_allclose(layer.moving_variance.numpy(), exact, rtol=1e-3)


@pytest.mark.any_ranks
@pytest.mark.parametrize("axis", [-1, 1])
def test_masks(axis: int) -> None:
    """With axis 1 the channels have different numbers of samples."""
    if axis == 1 and [int(part) for part in keras.__version__.split(".")[:2]] < [3, 9]:
        pytest.skip("Keras before 3.9 divides by the samples of one of the last dimension's values")
    counts = [3] * hvd.size()
    values = np.random.default_rng(6).normal(size=(sum(counts), 5, 2)).astype("float32")
    mask = np.random.default_rng(7).random((sum(counts), 5)) < 0.7
    mask[0] = True
    compare(values, mask, counts, axis=axis)


def test_what_is_masked_may_be_anything() -> None:
    values = np.array([[[1.0], [np.inf]], [[3.0], [np.nan]]], dtype="float32")
    mask = np.array([[True, False]] * 2)
    layer = hvd.SyncBatchNormalization(momentum=0.0)
    layer(values, training=True, mask=mask)
    np.testing.assert_allclose(layer.moving_mean.numpy(), [2.0], rtol=1e-6)


def test_renorm_and_frozen_layers() -> None:
    counts = [PER_RANK] * hvd.size()
    values = np.random.default_rng(8).normal(size=(sum(counts), 3)).astype("float32")
    if "renorm" in inspect.signature(keras.layers.BatchNormalization).parameters:  # from 3.14 on
        compare(values, None, counts, renorm=True)
    layer = hvd.SyncBatchNormalization()
    layer.trainable = False
    if hvd.rank() == 0:  # a frozen layer asks nobody
        np.testing.assert_allclose(layer(values, training=True), values / np.sqrt(1.001), rtol=1e-5)


def test_inside_a_function_and_after_other_layers_on_one_rank() -> None:
    """Keras numbers layers per process; the ranks still meet."""
    if hvd.rank() == hvd.size() - 1:
        for _ in range(3):
            hvd.SyncBatchNormalization().build((None, 2))
    layers = [hvd.SyncBatchNormalization(momentum=0.0) for _ in range(2)]

    @tf.function
    def run(x: Any) -> Any:
        for layer in layers:
            x = layer(x, training=True)
        return x

    values = np.full((2, 2), float(hvd.rank()), dtype="float32")
    run(values)
    run(values[: 1 + hvd.rank() % 2])  # traced again, as a partial batch is
    ranks = np.concatenate([np.full(1 + r % 2, float(r)) for r in range(hvd.size())])
    np.testing.assert_allclose(layers[0].moving_mean.numpy(), [ranks.mean()] * 2, rtol=1e-6)
    np.testing.assert_allclose(layers[0].moving_variance.numpy(), [ranks.var()] * 2, rtol=1e-5)


@pytest.mark.any_ranks
def test_the_ranks_of_a_process_set_share_their_batches(several: int) -> None:
    del several
    halves = [[0], list(range(1, hvd.size()))]
    sets = [hvd.add_process_set(ranks) for ranks in halves]
    try:
        mine = sets[0] if hvd.rank() == 0 else sets[1]
        layer = hvd.SyncBatchNormalization(process_set=mine, momentum=0.0)
        layer(np.full((2, 1), float(hvd.rank()), dtype="float32"), training=True)
        np.testing.assert_allclose(layer.moving_mean.numpy(), [np.mean(mine.ranks)], rtol=1e-6)
    finally:
        for process_set in sets:
            hvd.remove_process_set(process_set)


def test_a_process_set_is_saved_as_its_ranks() -> None:
    layer = hvd.SyncBatchNormalization(process_set=hvd.ProcessSet([1, 0]))
    assert layer.get_config()["process_set"] == [0, 1]
    copy = hvd.SyncBatchNormalization.from_config(layer.get_config())
    values = np.zeros((2, 1), dtype="float32")
    with pytest.raises(ValueError, match=r"was saved with the process set of ranks \[0, 1\]"):
        copy(values, training=True)
    copy.process_set = None
    copy(values, training=True)
    everyone = hvd.SyncBatchNormalization(process_set=hvd.global_process_set)
    assert "process_set" not in everyone.get_config()


def test_parameters() -> None:
    assert tfring.SyncBatchNormalization is hvd.SyncBatchNormalization
    with pytest.raises(ValueError, match="fused=True"):
        hvd.SyncBatchNormalization(fused=True)
    assert hvd.SyncBatchNormalization(fused=False, epsilon=0.5).epsilon == 0.5
