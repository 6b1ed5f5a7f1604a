"""Keras 2 (tf_keras): gradients of embeddings, sparse or dense, make what one process makes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tiers import slow

import tfring
import tfring.keras as hvd

tfk = pytest.importorskip("tf_keras")

# They hold for any number of ranks; one number is enough, and saves time.
pytestmark = pytest.mark.skipif(tfring.size() != 2, reason="run with two ranks")

ROWS, WIDTH, PER_RANK, STEPS, RATE = 7, 3, 6, 3, 0.1


def all_of(module: Any) -> list[Any]:
    """The optimizers of a module of tf_keras."""
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type)]
    return [
        kind
        for kind in kinds
        if issubclass(kind, module.Optimizer) and kind is not module.Optimizer
    ]


NEW, LEGACY = tfk.optimizers, tfk.optimizers.legacy
OPTIMIZERS: dict[str, Any] = {
    **{f"new {kind.__name__}": kind for kind in all_of(NEW)},
    **{f"legacy {kind.__name__}": kind for kind in all_of(LEGACY)},
    "new clipnorm": lambda rate: NEW.Adam(rate, clipnorm=0.05),
    "new ema": lambda rate: NEW.Adam(rate, use_ema=True, ema_overwrite_frequency=2),
    "legacy momentum": lambda rate: LEGACY.SGD(rate, momentum=0.9, nesterov=True),
    "legacy amsgrad": lambda rate: LEGACY.Adam(rate, amsgrad=True, clipvalue=0.02),
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
def test_every_optimizer_of_keras_2(name: str) -> None:
    sparse = train(OPTIMIZERS[name](RATE), gradient_of)
    dense = train(
        OPTIMIZERS[name](RATE), lambda table, ids: tf.convert_to_tensor(gradient_of(table, ids))
    )
    for sparse_as_dense in (False, True, "auto"):
        optimizer = hvd.DistributedOptimizer(
            OPTIMIZERS[name](RATE), sparse_as_dense=sparse_as_dense
        )
        together = train(optimizer, lambda table, ids: gradient_of(table, ids[tfring.rank()]))
        # Ftrl of the legacy kind leaves rows alone that no gradient names, in one process, too.
        # "auto" makes these gradients dense: their rows are more bytes than the table.
        lazy = name == "legacy Ftrl" and not sparse_as_dense
        for ours, theirs in zip(together, sparse if lazy else dense, strict=True):
            np.testing.assert_allclose(
                ours, theirs, rtol=2e-4, atol=1e-6, err_msg=f"{name} {sparse_as_dense}"
            )


@pytest.mark.parametrize(
    ("kind", "sparse_as_dense"),
    [(NEW.Adam, "auto"), slow(LEGACY.Adam, False)],
    ids=["new", "legacy"],
)
def test_a_model_with_an_embedding_in_fit(kind: Any, sparse_as_dense: Any) -> None:
    def build(optimizer: Any) -> Any:
        tfk.utils.set_random_seed(1)
        table = tfk.layers.Embedding(ROWS, WIDTH)
        model = tfk.Sequential([tfk.Input((1,)), table, tfk.layers.Flatten(), tfk.layers.Dense(1)])
        model.compile(optimizer, "mse")
        return model

    def fit(model: Any, parts: Any) -> Any:
        x = np.stack([ids_of(step) for step in range(STEPS)])[:, parts].reshape(-1, 1)
        batch = len(x) // STEPS
        model.fit(x, np.cos(x), batch_size=batch, epochs=2, shuffle=False, verbose=0)
        return model.get_weights()

    alone = fit(build(kind(RATE)), slice(None))
    wrapped = hvd.DistributedOptimizer(kind(RATE), sparse_as_dense=sparse_as_dense)
    together = fit(build(wrapped), tfring.rank())
    for ours, theirs in zip(together, alone, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
