"""What fit reports, and callbacks decide by, is what one process reports of all the data."""

from __future__ import annotations

import logging
from typing import Any

import keras
import numpy as np
import pytest
from keras_cases import FEATURES

import tfring.keras as hvd

pytestmark = pytest.mark.usefixtures("eager_functions")

BATCH = 4


class TruePositives(keras.metrics.Metric):  # type: ignore[misc]
    """The example of Keras' documentation."""

    def __init__(self, name: str = "tp", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.true_positives = self.add_variable(shape=(), initializer="zeros", name="tp")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        hits = keras.ops.logical_and(y_true > 0.5, y_pred > 0.5)
        values = keras.ops.cast(hits, self.dtype)
        self.true_positives.assign(self.true_positives + keras.ops.sum(values))

    def result(self) -> Any:
        # Not the variable itself, of which Keras reads the value after the validation only.
        return self.true_positives + 0.0


class SquaredMean(keras.metrics.Mean):  # type: ignore[misc]
    """Hands something to the update_state of a metric of Keras, and changes the result."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        super().update_state(keras.ops.square(y_true - y_pred), sample_weight)

    def result(self) -> Any:
        return keras.ops.sqrt(super().result())


class Ratio(keras.metrics.Metric):  # type: ignore[misc]
    """Two states, which are added to."""

    def __init__(self, name: str = "ratio", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.above = self.add_weight(name="above", initializer="zeros")
        self.below = self.add_weight(name="below", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.above.assign_add(keras.ops.sum(keras.ops.cast(y_pred > y_true, "float32")))
        self.below.assign_add(keras.ops.sum(keras.ops.cast(y_pred < y_true, "float32")))

    def result(self) -> Any:
        return self.above / (self.below + 1.0)


class RunningMean(keras.metrics.Metric):  # type: ignore[misc]
    """What is added depends on the states: no sum over parts."""

    def __init__(self, name: str = "running", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.mean = self.add_weight(name="mean", initializer="zeros")
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        delta = keras.ops.mean(y_true) - self.mean
        self.count.assign_add(1.0)
        self.mean.assign_add(delta / self.count)

    def result(self) -> Any:
        return self.mean


def build() -> Any:
    initializers = [keras.initializers.GlorotUniform(seed=seed) for seed in (3, 4)]
    return keras.Sequential(
        [
            keras.layers.Input((FEATURES,)),
            keras.layers.Dense(7, activation="tanh", kernel_initializer=initializers[0]),
            keras.layers.Dense(1, activation="sigmoid", kernel_initializer=initializers[1]),
        ]
    )


def metrics() -> list[Any]:
    return [
        keras.metrics.AUC(name="auc"),
        keras.metrics.Precision(name="precision"),
        keras.metrics.F1Score(name="f1", threshold=0.5, average="micro"),
        keras.metrics.RootMeanSquaredError(name="rmse"),
        TruePositives(),
        SquaredMean("own_rmse"),
        Ratio(),
    ]


def samples(count: int, seed: int) -> tuple[Any, Any]:
    """Sorted by what decides the class: the ranks' parts are of different kinds."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, FEATURES)).astype("f")
    y = (x[:, :1] + rng.normal(size=(count, 1)) > 0).astype("f")
    order = np.argsort(x[:, 0] + x[:, 1])
    return x[order], y[order]


def training() -> tuple[Any, Any]:
    return samples(3 * BATCH * hvd.size(), 1)


def my_batches(data: tuple[Any, Any]) -> tuple[Any, ...]:
    """Of each batch of one process this rank's rows."""
    size, rank = hvd.size(), hvd.rank()
    cut = (a.reshape(-1, size, BATCH, a.shape[-1])[:, rank] for a in data)
    return tuple(a.reshape(-1, a.shape[-1]) for a in cut)


def validation() -> list[tuple[Any, Any]]:
    """30 rows on rank 0 and 3 on each of the others."""
    x, y = samples(30 + 3 * (hvd.size() - 1), 2)
    cuts = np.arange(30, len(x), 3)
    return list(zip(np.split(x, cuts), np.split(y, cuts), strict=True))


class Seen(keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps the logs that a callback after the others gets."""

    def __init__(self) -> None:
        super().__init__()
        self.logs: list[dict[str, float]] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.logs.append({k: float(v) for k, v in (logs or {}).items()})


def deciding() -> list[Any]:
    return [
        keras.callbacks.EarlyStopping("val_auc", mode="max", patience=2),
        keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1),
    ]


@pytest.mark.slow
@pytest.mark.any_ranks
def test_fit_with_early_stopping_is_that_of_one_process() -> None:
    ours, alone, seen = build(), build(), Seen()
    ours.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(2.0)), "bce", metrics=metrics())
    alone.compile(keras.optimizers.SGD(2.0), "bce", metrics=metrics())
    how = {"epochs": 12, "shuffle": False, "verbose": 0}
    x, y = my_batches(training())
    history = ours.fit(
        x,
        y,
        batch_size=BATCH,
        validation_data=validation()[hvd.rank()],
        callbacks=hvd.fit_callbacks(*deciding(), seen),
        **how,
    ).history
    whole = tuple(np.concatenate(values) for values in zip(*validation(), strict=True))
    want = alone.fit(
        *training(),
        batch_size=BATCH * hvd.size(),
        validation_data=whole,
        callbacks=deciding(),
        **how,
    ).history
    assert len(want["loss"]) < how["epochs"], "EarlyStopping has not stopped anything"
    assert set(history) == set(want)
    for name, values in want.items():
        assert history[name] == pytest.approx(values, rel=2e-4, abs=1e-5), name
    assert seen.logs[-1]["val_auc"] == history["val_auc"][-1]
    again = hvd.evaluate(ours, *validation()[hvd.rank()])
    assert {f"val_{k}": v for k, v in again.items()} == pytest.approx(
        {k: v[-1] for k, v in history.items() if k.startswith("val_")}, rel=1e-6
    )


def test_masked_means_count_what_is_not_masked() -> None:
    x = np.zeros((4, 5), "int32")
    for row in range(4):
        x[row, : 1 + row % (hvd.rank() + 2)] = 1 + hvd.rank()
    y = np.full((4, 5), hvd.rank() % 3, "int32")
    everywhere = [np.concatenate(part) for part in zip(*hvd.allgather_object((x, y)), strict=True)]
    model = keras.Sequential(
        [
            keras.layers.Embedding(9, 4, mask_zero=True, embeddings_initializer=_ramp(9, 4)),
            keras.layers.Dense(3, kernel_initializer=_ramp(4, 3)),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.0))
    model.compile(optimizer, loss, metrics=["accuracy"])
    history = model.fit(x, y, verbose=0, callbacks=hvd.fit_callbacks()).history
    whole = model.evaluate(*everywhere, batch_size=999, verbose=0, return_dict=True)
    assert history["accuracy"] == pytest.approx([whole["accuracy"]])


def _ramp(rows: int, columns: int) -> Any:
    return keras.initializers.Constant(np.sin(np.arange(rows * columns)).reshape(rows, columns))


def test_states_that_are_no_sums_give_means_and_a_word(
    several: int, caplog: pytest.LogCaptureFixture
) -> None:
    model = build()
    model.compile("sgd", "bce", metrics=[RunningMean("running_of_test")])
    x, y = np.zeros((3, FEATURES), "f"), np.full((3, 1), hvd.rank() * 1.0, "f")
    with caplog.at_level(logging.WARNING, "tfring"):
        got = hvd.evaluate(model, x, y)
    assert got["running_of_test"] == pytest.approx((several - 1) / 2)
    said = [r.getMessage() for r in caplog.records if "running_of_test" in r.getMessage()]
    assert len(said) == (1 if hvd.rank() == 0 else 0)
    assert all("RunningMean" in text and "assign_add" in text for text in said)
