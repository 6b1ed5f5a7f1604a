"""Keras 2 (tf_keras): gradients of embeddings, sparse or dense, make what one process makes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfring
import tfring.keras as hvd

tfk = pytest.importorskip("tf_keras")

# They hold for any number of ranks; one number is enough, and saves time.
pytestmark = pytest.mark.skipif(tfring.size() != 2, reason="run with two ranks")

ROWS, WIDTH, PER_RANK, STEPS, RATE = 7, 3, 6, 3, 0.1


NEW, LEGACY = tfk.optimizers, tfk.optimizers.legacy
OPTIMIZERS: dict[str, Any] = {
    "new": lambda rate: NEW.Adam(rate, use_ema=True, ema_overwrite_frequency=2, clipnorm=0.05),
    "legacy": lambda rate: LEGACY.Adam(rate, amsgrad=True, clipvalue=0.02),
}


def ids_of(step: int) -> Any:
    """The whole batch: rows occur several times on one rank and on several ranks."""
    return np.random.default_rng(step).integers(0, ROWS - 1, size=(tfring.size(), PER_RANK))


def gradient_of(table: Any, ids: Any) -> Any:
    """The tf.IndexedSlices of the mean over these samples."""
    with tf.GradientTape() as tape:
        rows = tf.gather(table, ids.reshape(-1))
        weights = 1.0 + 0.1 * tf.cast(ids.reshape(-1, 1), tf.float32)
        loss = tf.reduce_mean(weights * tf.sin(rows) * rows)
    gradient = tape.gradient(loss, table)
    assert isinstance(gradient, tf.IndexedSlices)
    return gradient


def train(optimizer: Any, gradient: Any) -> list[Any]:
    """The table and the optimizer's variables after some steps."""
    values = np.random.default_rng(9).normal(size=(ROWS, WIDTH)).astype(np.float32)
    table = tf.Variable(values, name="embeddings")
    for step in range(STEPS):
        optimizer.apply_gradients([(gradient(table, ids_of(step)), table)])
    variables = optimizer.variables
    own = variables() if callable(variables) else variables
    return [table.numpy(), *(np.asarray(v) for v in own)]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_both_kinds_of_optimizers(name: str) -> None:
    alone = train(
        OPTIMIZERS[name](RATE), lambda table, ids: tf.convert_to_tensor(gradient_of(table, ids))
    )
    for sparse_as_dense in (False, True, "auto"):
        optimizer = hvd.DistributedOptimizer(
            OPTIMIZERS[name](RATE), sparse_as_dense=sparse_as_dense
        )
        together = train(optimizer, lambda table, ids: gradient_of(table, ids[tfring.rank()]))
        for ours, theirs in zip(together, alone, strict=True):
            np.testing.assert_allclose(
                ours, theirs, rtol=2e-4, atol=1e-6, err_msg=f"{name} {sparse_as_dense}"
            )
