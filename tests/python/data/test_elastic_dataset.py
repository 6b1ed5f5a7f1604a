"""ElasticDataset and index_dataset in one process: the samples that Keras reads and resumes at."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfring import data as tfring_data
from tfring.data.cursor import Cursor
from tfring.keras.callbacks import CursorCallback

SAMPLES, BATCH = 26, 4
X = np.arange(SAMPLES, dtype=np.float32)[:, None]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """The records of the logger "tfring", even if its level was set."""
    with caplog.at_level(logging.WARNING, logger="tfring"):
        yield caplog


def load(indices: Any) -> tuple[Any, Any]:
    return X[indices], 2 * X[indices]


def dataset(rank: int = 0, size: int = 1, **more: Any) -> Any:
    how = {"policy": BATCH, "seed": 3, "load": load, **more}
    return tfring_data.ElasticDataset(samples=SAMPLES, rank=rank, size=size, **how)


class Seen(keras.Model):
    """Notes the samples that it is trained on."""

    def __init__(self, steps_per_execution: int = 1) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.samples: list[list[int]] = []
        self.compile("sgd", "mse", run_eagerly=True, steps_per_execution=steps_per_execution)

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, data: Any) -> Any:
        self.samples.append([int(sample) for sample in np.ravel(data[0])])
        return {"loss": 0.0}

    def flat(self) -> list[int]:
        return [sample for step in self.samples for sample in step]


def orders(*epochs: int) -> list[int]:
    return [int(i) for epoch in epochs for i in Cursor(SAMPLES, 3, epoch=epoch).order()]


class Interrupted(Exception):
    """Ends `fit` in the middle."""


def stop_after(batches: int, how: str = "raise") -> Any:
    def end(batch: int, logs: Any) -> None:
        if batch + 1 >= batches:
            if how == "raise":
                raise Interrupted
            callback.model.stop_training = True

    callback = keras.callbacks.LambdaCallback(on_train_batch_end=end)
    return callback


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("commits", [False, True])
def test_fit_goes_through_all_epochs(workers: int, commits: bool) -> None:
    data, model = dataset(workers=workers), Seen()
    callbacks = [CursorCallback(data)] if commits else []
    for epochs in (2, 1):  # the second call of fit goes on after the first
        model.fit(data, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)
    assert model.flat() == orders(0, 1, 2)
    assert len(data) == 7 and [len(step) for step in model.samples] == [4, 4, 4, 4, 4, 4, 2] * 3
    assert data.state_dict()["epoch"] == 2 and data.state_dict()["consumed"] == SAMPLES


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("how", ["raise", "stop"])
@pytest.mark.parametrize("steps_per_execution", [1, 2])
def test_fit_goes_on_within_an_epoch(
    workers: int, how: str, steps_per_execution: int, log: pytest.LogCaptureFixture
) -> None:
    data, model = dataset(workers=workers), Seen(steps_per_execution)
    fit = {"shuffle": False, "verbose": 0}
    before = CursorCallback(data)
    with contextlib.suppress(Interrupted):
        model.fit(data, epochs=2, callbacks=[before, stop_after(4, how)], **fit)
    state = data.state_dict()
    assert (state["epoch"], state["consumed"]) == (0, 16)
    resumed = dataset(workers=workers)
    resumed.load_state_dict(state)
    for goes_on in (data, resumed):  # the same process, and another one
        model.samples = model.samples[:4]
        log.clear()
        callbacks = [CursorCallback(goes_on)]
        model.fit(goes_on, initial_epoch=0, epochs=3, callbacks=callbacks, **fit)
        assert model.flat() == orders(0, 1, 2)
        assert "epoch 1 resumes after 16 of 26 samples, with the last 3 of its 7" in log.text


def test_what_was_not_committed_comes_again_for_other_ranks() -> None:
    data = dataset(size=2, workers=2)
    first = [data[step] for step in range(3)]
    iterator = iter(data)
    for step in range(3):
        for part, again in zip(next(iterator), first[step], strict=True):
            np.testing.assert_array_equal(part, again)
        data.commit()
    next(iterator)  # read and never committed
    state = data.state_dict()
    seen = []
    for rank in range(3):
        other = dataset(rank, size=3)
        other.load_state_dict(state)
        seen += [int(x) for batch in other for x in np.ravel(batch[0])]
    data.load_state_dict(state)
    data.resize(0, 3)
    assert len(list(data)) == 4
    assert sorted(seen) == sorted([*orders(0)[12:], *orders(0)[24:25]])  # 2 samples for 3 ranks


def test_keras_order_of_batches_is_refused() -> None:
    data, model = dataset(), Seen()
    with pytest.raises(
        Exception, match=r"rank 0: Keras asked for batch .* Pass shuffle=False to fit"
    ):
        for _ in range(30):  # a shuffle may keep the order
            model.fit(data, epochs=1, shuffle=True, verbose=0)


def test_steps_per_epoch_shorter_than_an_epoch() -> None:
    data, model = dataset(), Seen()
    callbacks = [CursorCallback(data)]
    fit = {"shuffle": False, "verbose": 0, "callbacks": callbacks}
    model.fit(data, epochs=2, steps_per_epoch=3, **fit)
    assert model.flat() == orders(0)[:24] and data.state_dict()["consumed"] == 24
    model.fit(data, epochs=2, **fit)
    assert model.flat() == orders(0, 1)


@pytest.mark.parametrize("weights", [None, "plain"])
def test_weights_make_the_average_of_unequal_parts_the_mean(weights: Any) -> None:
    """The average is weighted by the numbers of samples, or ranks count alike."""
    for size in (1, 3, 5):
        ranks = [dataset(rank, size, weights=weights) for rank in range(size)]
        for step in range(7):
            batches = [rank[step] for rank in ranks]
            assert all(w.shape == (len(x), 1) and w.dtype == np.float32 for x, _, w in batches)
            rows = [1 if weights else len(x) for x, _, _ in batches]
            mean = np.average([np.mean(x * w) for x, _, w in batches], weights=rows)
            assert mean == pytest.approx(np.mean(orders(0)[4 * step : 4 * (step + 1)]), rel=1e-6)


def test_weights_have_the_dimensions_of_targets() -> None:
    targets = {"a": np.ones((SAMPLES, 5, 6)), "b": np.ones(SAMPLES)}

    def of(result: Any, **more: Any) -> Any:
        def nested(i: Any) -> Any:
            return result(i)

        return dataset(rank=1, size=3, load=nested, **more)[0]

    plain = {"weights": "plain"}
    _, _, weights = of(lambda i: (X[i], {name: t[i] for name, t in targets.items()}), **plain)
    assert {name: w.shape for name, w in weights.items()} == {"a": (1, 1, 1), "b": (1,)}
    assert weights["b"][0] == pytest.approx(1 * 3 / 4)
    _, _, weights = of(lambda i: (X[i], X[i], np.full(len(i), 2)), **plain)
    np.testing.assert_allclose(weights, [2 * 3 / 4])
    with pytest.raises(ValueError, match="'plane'"):
        of(lambda i: (X[i], X[i]), weights="plane")
    assert len(of(lambda i: (X[i], X[i]), weights=False)) == 2
    assert of(lambda i: X[i]).shape == (1, 1)
    with pytest.raises(TypeError, match=r"rank 1: load returned a dict\. To have weights, it must"):
        of(lambda i: {"x": X[i]}, weights=True)


@pytest.mark.parametrize("shape", [(), (3,), (3, 4)])
def test_keras_takes_the_weights_of_targets_of_any_shape(shape: tuple[int, ...]) -> None:
    """A loss with the weights of a rank is its mean times the weight."""
    rng = np.random.default_rng(0)
    targets = rng.integers(0, 2, (SAMPLES, *shape)).astype(np.float32)
    guesses = rng.random((SAMPLES, *shape, 2)).astype(np.float32)
    data = dataset(
        rank=1, size=3, load=lambda i: (guesses[i], targets[i]), policy=10, weights="plain"
    )
    guess, target, weight = data[0]
    loss = keras.losses.SparseCategoricalCrossentropy()
    expected = float(loss(target, guess)) * (3 * len(guess) / 10)
    assert float(loss(target, guess, weight)) == pytest.approx(expected, rel=1e-5)
    metric = keras.metrics.SparseCategoricalAccuracy()
    metric.update_state(target, guess, sample_weight=weight)
    plain = keras.metrics.SparseCategoricalAccuracy()
    plain.update_state(target, guess)
    assert float(metric.result()) == pytest.approx(float(plain.result()), rel=1e-5)


def test_threads_that_ask_for_the_same_steps() -> None:
    data = dataset(workers=4, max_queue_size=2, policy=1)
    wanted = [data[step][0] for step in range(len(data))]
    next(iter(data))
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            for step, batch in enumerate(wanted):
                np.testing.assert_array_equal(data[step][0], batch)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_workers_load_ahead_and_not_too_far() -> None:
    loaded: list[int] = []
    fourth = threading.Event()

    def note(indices: Any) -> Any:
        loaded.append(int(indices[0]))
        if indices[0] >= 3:
            fourth.set()
        return load(indices)

    data = dataset(load=note, workers=2, max_queue_size=3, policy=1, shuffle=False)
    batches = iter(data)
    next(batches)
    assert fourth.wait(60.0), "nothing is loaded before it is asked for"
    for step in range(1, 10):
        next(batches)
        assert max(loaded) <= step + 3


def test_an_error_of_load_reaches_the_loop() -> None:
    def broken(indices: Any) -> Any:
        if 5 in indices:
            raise OSError("sample 5 cannot be read")
        return load(indices)

    for workers in (1, 3):
        with pytest.raises(OSError, match="sample 5"):
            list(dataset(load=broken, workers=workers))


def test_the_learning_rate_with_a_batch_for_each_rank() -> None:
    data = dataset(rank=1, size=3, policy=tfring_data.Policy(2, per_rank=True, ramp_steps=2))
    model, rates = Seen(), []
    model.optimizer.learning_rate = 0.1
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: rates.append(float(model.optimizer.learning_rate))
    )
    fit = {"shuffle": False, "verbose": 0, "callbacks": [CursorCallback(data), note]}
    model.fit(data, epochs=1, **fit)
    np.testing.assert_allclose(rates, [0.1, 0.2, 0.3, 0.3, 0.3], rtol=1e-6)
    data.resize(0, 2)
    del rates[:]
    model.fit(data, epochs=1, **fit)
    np.testing.assert_allclose(rates, [0.3, 0.25, 0.2, 0.2, 0.2, 0.2, 0.2], rtol=1e-6)
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    model.compile(keras.optimizers.SGD(schedule), "mse", run_eagerly=True)
    data.resize(0, 4)
    data.cursor.begin()
    data.commit()
    with pytest.raises(ValueError, match="LearningRateSchedule: give the optimizer a number"):
        model.fit(data, epochs=1, **fit)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="at least 1, not 0 and 10"):
        dataset(workers=0)
    with pytest.raises(IndexError, match="no batch 7"):
        dataset()[7]


def index_batches(cursor: Any, **more: Any) -> Any:
    x = tf.constant(X)
    return tfring_data.index_dataset(
        lambda i: (tf.gather(x, i), tf.gather(x, i)[:, 0]), cursor, **more
    )


def test_index_dataset_goes_on_where_the_cursor_is() -> None:
    cursors = [tfring_data.DataCursor(SAMPLES, 4, seed=3, rank=r, size=3) for r in range(3)]
    seen: list[list[int]] = [[], []]
    for epoch, samples in enumerate(seen):
        for step in zip(*[index_batches(cursor) for cursor in cursors], strict=True):
            samples += [int(x) for xs, _, w in step if w[0] > 0 for x in np.ravel(xs)]
            rows = sum(len(x) for x, _, w in step if w[0] > 0)
            for _, _, w in step:
                assert float(w[0]) in (0, pytest.approx(max(1.0, len(cursors) / rows)))
            for cursor in cursors if len(samples) <= 12 or epoch else []:
                cursor.commit()
        if epoch == 0:  # samples that were read but not committed come again, for two ranks
            for cursor in cursors:
                cursor.load_state_dict(cursors[0].state_dict())
            del cursors[2], samples[12:]
            for rank, cursor in enumerate(cursors):
                cursor.resize(rank, 2)
    assert sorted(seen[0] + seen[1]) == list(range(SAMPLES))
    assert seen[0] == orders(0)[:12]


def test_index_dataset_without_weights_and_with_others() -> None:
    def cursor() -> Any:
        return tfring_data.DataCursor(SAMPLES, 4, rank=0, size=3)

    assert len(next(iter(index_batches(cursor(), weights=False)))) == 2
    inputs = tfring_data.index_dataset(lambda i: {"x": i}, cursor())
    assert next(iter(inputs))["x"].dtype == tf.int64
    given = tfring_data.index_dataset(
        lambda i: (i, i, tf.fill([tf.size(i)], 2)), cursor(), weights="plain"
    )
    np.testing.assert_allclose(next(iter(given))[2], [2 * 3 / 4])
    with pytest.raises(TypeError, match="load returned a dict"):
        tfring_data.index_dataset(lambda i: {"x": i}, cursor(), weights=True)


def test_index_dataset_in_fit_counts_epochs_without_commits() -> None:
    cursor, model = tfring_data.DataCursor(SAMPLES, 4, seed=3, rank=0, size=1), Seen()
    model.fit(index_batches(cursor), epochs=3, verbose=0)
    assert model.flat() == orders(0, 1, 2)
