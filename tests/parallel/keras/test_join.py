"""JoinCallback: `fit` where the ranks have different numbers of batches."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from keras_cases import (
    FEATURES,
    PER_RANK,
    assert_same_on_all_ranks,
    assert_same_weights,
    broadcast,
    build_model,
    compiled,
    fit,
    loss,
)

import tfring.keras as hvd
from tfring.keras import callbacks

pytestmark = pytest.mark.usefixtures("eager_functions")

BATCHES = (7, 5, 3, 4)  # of each rank


def counts() -> tuple[int, ...]:
    return BATCHES[: hvd.size()]


def data_of(rank: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(100 + rank)
    count = BATCHES[rank] * PER_RANK
    return rng.normal(size=(count, FEATURES)).astype("float32"), rng.integers(0, 3, count)


def fit_own(model: Any, *used: Any, **kwargs: Any) -> Any:
    return fit(model, *used, data=data_of(hvd.rank()), **kwargs)


def alone(optimizer: Any, epochs: int, seed: int = 1, middle: Any = ()) -> Any:
    """What one process makes of the batches of those ranks that still have one, step by step."""
    model = build_model(seed, *middle)
    model.compile(optimizer=optimizer, loss=loss(), run_eagerly=True)
    parts = [data_of(rank) for rank in range(hvd.size())]
    for _ in range(epochs):
        for step in range(max(counts())):
            rows = slice(step * PER_RANK, (step + 1) * PER_RANK)
            having = [part for part, count in zip(parts, counts(), strict=True) if step < count]
            x, y = (np.concatenate([part[i][rows] for part in having]) for i in range(2))
            model.train_on_batch(x, y)
    return model


@pytest.mark.any_ranks
def test_the_average_counts_the_ranks_that_take_part() -> None:
    adam = keras.optimizers.Adam
    model, join = compiled(adam(1e-2), seed=1 + hvd.rank()), callbacks.JoinCallback()
    fit_own(model, join, broadcast(), epochs=2)
    assert_same_weights(model, alone(adam(1e-2), epochs=2).get_weights())
    assert_same_on_all_ranks(model)
    assert join.last_rank == 0
    assert int(model.optimizer.iterations) == 2 * max(counts())
    if hvd.size() > 1:  # the next fit is refused without the callback
        with pytest.raises(RuntimeError, match="JoinCallback"):
            fit_own(model, broadcast())


@pytest.mark.any_ranks
def test_sync_batch_normalization_counts_the_samples_of_those_that_take_part() -> None:
    sync = hvd.SyncBatchNormalization(momentum=0.9)
    model = compiled(keras.optimizers.SGD(0.1), middle=[sync])
    fit_own(model, callbacks.JoinCallback(), broadcast())
    plain = keras.layers.BatchNormalization(momentum=0.9)
    expected = alone(keras.optimizers.SGD(0.1), epochs=1, middle=[plain])
    assert_same_weights(model, expected.get_weights(), tolerance=2e-5)
    assert_same_on_all_ranks(model)


def test_metrics_and_validation_wait_for_all() -> None:
    """Wherever JoinCallback is in the list, validation sees the weights that all end up with."""
    x, y = data_of(0)
    model = compiled(keras.optimizers.SGD(0.1))
    join, mean = callbacks.JoinCallback(), callbacks.MetricAverageCallback()
    check = callbacks.ConsistencyCheckCallback(every=2, optimizer_state=True)
    used = [broadcast(), check, mean, join]
    history = fit_own(model, *used, epochs=2, validation_data=(x[:9], y[:9])).history
    evaluated = model.evaluate(x[:9], y[:9], verbose=0)
    assert history["val_loss"][-1] == pytest.approx(evaluated, rel=1e-5)
    assert len(set(hvd.allgather_object(tuple(history["loss"])))) == 1
    assert_same_on_all_ranks(model)


def test_a_warm_up_follows_the_longest_epoch() -> None:
    model = compiled(keras.optimizers.SGD(0.1))
    warmup = callbacks.LearningRateWarmupCallback(0.1, warmup_epochs=1)
    check = callbacks.ConsistencyCheckCallback(every=1, optimizer_state=True)
    history = fit_own(model, broadcast(), warmup, check, callbacks.JoinCallback()).history
    assert warmup.steps_per_epoch == max(counts())
    assert max(hvd.allgather_object(history["lr"][-1])) == pytest.approx(0.1)


def test_accumulated_gradients_stay_where_they_are() -> None:
    model = compiled(keras.optimizers.SGD(0.1, gradient_accumulation_steps=4))
    fit_own(model, broadcast(), callbacks.JoinCallback(), epochs=2)
    assert_same_on_all_ranks(model)


def test_sparse_gradients_count_the_ranks_that_take_part() -> None:
    def build() -> Any:
        embed = keras.layers.Embedding(FEATURES, 2, embeddings_initializer="ones")
        return keras.Sequential([keras.layers.Input((1,)), embed, keras.layers.Flatten()])

    model = build()
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)), loss="mse")
    x = np.full((BATCHES[hvd.rank()], 1), hvd.rank() % 2)
    y = np.zeros((len(x), 2))
    model.fit(x, y, batch_size=1, verbose=0, callbacks=[callbacks.JoinCallback()])
    expected = np.ones(FEATURES)
    for step in range(max(counts())):
        having = [rank for rank, count in enumerate(counts()) if step < count]
        rows = [rank % 2 for rank in having]
        gradients = [np.eye(FEATURES)[row] * expected[row] for row in rows]  # of mean(y^2) over 2
        expected = expected - np.mean(gradients, axis=0)
    table = model.layers[0].embeddings.numpy()
    np.testing.assert_allclose(table, np.stack([expected] * 2, axis=1), rtol=1e-5, atol=1e-6)
    assert_same_on_all_ranks(model)


def test_local_variables_are_not_taken_over() -> None:
    model = compiled(keras.optimizers.SGD(0.0, momentum=0.9), seed=hvd.rank())
    local = model.layers[0].kernel
    hvd.broadcast_variables([w for w in model.weights if w is not local], root_rank=0)
    before = local.numpy()
    model.optimizer.register_local_var(local)
    check = callbacks.ConsistencyCheckCallback(optimizer_state=True)
    fit_own(model, callbacks.JoinCallback(), check)
    np.testing.assert_array_equal(local.numpy(), before)
    assert_same_on_all_ranks(model, but=local)
