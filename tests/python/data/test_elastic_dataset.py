"""ElasticDataset and index_dataset in one process: the samples that Keras reads and resumes at."""

from __future__ import annotations

import contextlib
import logging
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


@pytest.mark.parametrize(("workers", "commits"), [(1, True), (3, False)])
def test_fit_goes_through_all_epochs(workers: int, commits: bool) -> None:
    data, model = dataset(workers=workers), Seen()
    callbacks = [CursorCallback(data)] if commits else []
    for epochs in (2, 1):  # the second call of fit goes on after the first
        model.fit(data, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)
    assert model.flat() == orders(0, 1, 2)
    assert len(data) == 7 and [len(step) for step in model.samples] == [4, 4, 4, 4, 4, 4, 2] * 3
    assert data.state_dict()["epoch"] == 2 and data.state_dict()["consumed"] == SAMPLES


@pytest.mark.parametrize(
    ("workers", "how", "steps_per_execution"), [(1, "raise", 1), (3, "stop", 1), (1, "stop", 2)]
)
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


def test_index_dataset_in_fit_counts_epochs_without_commits() -> None:
    cursor, model = tfring_data.DataCursor(SAMPLES, 4, seed=3, rank=0, size=1), Seen()
    model.fit(index_batches(cursor), epochs=3, verbose=0)
    assert model.flat() == orders(0, 1, 2)
