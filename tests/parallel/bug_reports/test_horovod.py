"""Programs of reports to Horovod, here as they should have gone. docs/bug_reports.md lists them."""

from __future__ import annotations

import csv
import threading
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_cases import assert_same_on_all_ranks, broadcast, compiled, fit, my_data

import tfring
import tfring.keras as hvd

TF1 = tf.compat.v1


def test_2806_accumulated_gradients_of_an_embedding_that_become_dense() -> None:
    """Branches of a tf.cond had gradients of two kinds."""
    ids = np.arange(16 * hvd.size()).reshape(4, hvd.size(), 4) % 7
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(7, 3)).astype("float32")
    target = rng.normal(size=(*ids.shape, 3)).astype("float32")

    def train(optimizer: Any, ids: Any, target: Any, batch_size: int) -> Any:
        table = keras.layers.Embedding(7, 3, embeddings_initializer=keras.initializers.Constant(0))
        model = keras.Sequential([table])
        model.build((None,))
        table.embeddings.assign(rows)
        model.compile(optimizer, "mse")
        model.fit(ids, target, batch_size=batch_size, shuffle=False, verbose=0)
        return table.embeddings.numpy()

    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.5), backward_passes_per_step=2, sparse_as_dense=True
    )
    mine = train(optimizer, ids[:, hvd.rank()].reshape(-1), target[:, hvd.rank()].reshape(-1, 3), 4)
    # The passes of an update are added up, unless average_aggregated_gradients.
    rate = 2 * 0.5
    alone = train(
        keras.optimizers.SGD(rate), ids.reshape(-1), target.reshape(-1, 3), 8 * hvd.size()
    )
    np.testing.assert_allclose(mine, alone, atol=1e-6)


def test_3504_an_overflow_on_one_rank_does_not_stay_in_the_accumulator() -> None:
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01), initial_scale=2.0)
        optimizer = hvd.DistributedOptimizer(scaled, backward_passes_per_step=4)
        model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
        model.compile(optimizer, "mse", jit_compile=False)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    x, y = np.ones((4 * 12, 2), "float32"), np.ones((4 * 12, 1), "float32")
    if hvd.rank() == hvd.size() - 1:
        y[4:8] = 1e38  # in the second batch
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0, callbacks=[broadcast()])
    before = model.get_weights()[0]
    model.fit(x[:32], y[16:48], batch_size=4, shuffle=False, verbose=0)
    assert np.isfinite(before).all() and (model.get_weights()[0] != before).any()
    assert_same_on_all_ranks(model)
    scales = hvd.allgather_object(float(scaled.dynamic_scale))
    assert set(scales) == {1.0}


@pytest.mark.parametrize("passes", [1, 2])
def test_2715_the_global_step_counts_sessions_and_not_updates(passes: int) -> None:
    with tf.Graph().as_default(), TF1.Session() as session:
        weight = TF1.get_variable("weight", initializer=0.0)
        count = TF1.train.get_or_create_global_step()
        optimizer = tfring.DistributedOptimizer(
            TF1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=passes
        )
        train = optimizer.minimize(weight, global_step=count)
        session.run(TF1.global_variables_initializer())
        for _ in range(10):
            session.run(train)
        assert session.run(count) == 10 and session.run(weight) == -10


def test_2204_objects_of_very_different_sizes() -> None:
    mine: Any = [b"x", b"y" * (1 << 20), None, "abc"][hvd.rank() % 4]
    everywhere = hvd.allgather_object(mine)
    expected = [b"x", b"y" * (1 << 20), None, "abc"]
    assert everywhere == [expected[rank % 4] for rank in range(hvd.size())]


def test_4020_joining_again_and_again() -> None:
    rng = np.random.default_rng(hvd.rank())
    for _ in range(200):
        for _ in range(rng.integers(0, 4)):
            total = hvd.allreduce(tf.ones([3]), op=hvd.Sum, name="report.4020")
            assert 1 <= float(total[0]) <= hvd.size()
        assert 0 <= hvd.join() < hvd.size()
        assert float(hvd.allreduce(tf.ones([]), op=hvd.Sum, name="report.4020")) == hvd.size()


def test_1306_graphs_of_two_threads() -> None:
    """Each has names of its own. Two calls of one name at a time are refused (see test_runtime)."""
    wrong: list[Any] = []

    def run(number: int) -> None:
        with tf.Graph().as_default(), TF1.Session() as session:
            value = TF1.placeholder(tf.float32, [])
            total = hvd.allreduce(value, op=hvd.Sum, name=f"report.1306.{number}")
            for step in range(100):
                result = session.run(total, {value: 1000 * number + step})
                if result != hvd.size() * (1000 * number + step):
                    wrong.append((number, step, result))

    threads = [threading.Thread(target=run, args=[number]) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_2440_what_is_printed_logged_and_returned_is_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log.csv"
    model = compiled(keras.optimizers.SGD(0.1), hvd.rank(), metrics=["accuracy"])
    callbacks = hvd.fit_callbacks(keras.callbacks.CSVLogger(str(path)))
    history = fit(model, *callbacks, validation_data=my_data(1), epochs=2, verbose=2).history
    printed = capsys.readouterr().out
    assert set(map(str, hvd.allgather_object(history))) == {str(history)}
    for values in history.values():
        for value in values:
            assert f"{value:.4f}" in printed
    if path.exists():  # one rank of those that share the folder has written it
        with path.open() as file:
            rows = list(csv.DictReader(file))
        assert [float(row["val_loss"]) for row in rows] == pytest.approx(history["val_loss"])


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_3400_adasum_with_zeros_of_all_other_ranks(dtype: str) -> None:
    values = np.arange(1, 8, dtype=dtype) * (hvd.rank() == hvd.size() - 1)
    result = hvd.allreduce(tf.constant(values, dtype), op=hvd.Adasum, name="report.3400")
    np.testing.assert_array_equal(result, np.arange(1, 8, dtype=dtype))
