"""Callbacks that watch training: weighted metrics, checkpoints of the best, consistency checks."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras_cases import FEATURES, assert_same_weights, broadcast, compiled, fit

import tfring.keras as hvd
from tfring.keras import callbacks

pytestmark = pytest.mark.usefixtures("eager_functions")


def with_momentum(rate: float = 0.1, **kwargs: Any) -> Any:
    return compiled(keras.optimizers.SGD(rate, momentum=0.9), **kwargs)


def samples(count: int, seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, FEATURES)).astype("float32"), rng.integers(0, 3, count)


def test_weighted_metrics_are_those_of_all_samples() -> None:
    """The rate is zero, so evaluating everything afterwards must give the same numbers."""
    model = with_momentum(0.0, steps_per_execution=2)
    parts = [samples(6 + 2 * r, seed=r) for r in range(hvd.size())]
    validation = [samples(3 + 7 * r, seed=50 + r) for r in range(hvd.size())]
    x, y = parts[hvd.rank()]
    history = model.fit(
        x,
        y,
        batch_size=(len(x) + 1) // 2,  # two steps on every rank
        epochs=2,
        verbose=0,
        validation_data=validation[hvd.rank()],
        callbacks=[callbacks.MetricAverageCallback()],
    ).history

    def of_all(parts: Any) -> float:
        x, y = (np.concatenate(values) for values in zip(*parts, strict=True))
        return float(model.evaluate(x, y, verbose=0))

    assert history["loss"] == pytest.approx([of_all(parts)] * 2, rel=1e-5)
    assert history["val_loss"] == pytest.approx([of_all(validation)] * 2, rel=1e-5)


class UncountedLoss(keras.Model):
    """Reports a metric without Keras' loss tracker, which counts the samples."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs)

    def train_step(self, data: Any) -> Any:
        x, _ = data
        self.optimizer.apply([v * 0.0 for v in self.trainable_variables], self.trainable_variables)
        return {"first": x[0, 0] + 0.0 * keras.ops.sum(self(x))}


def test_without_counted_samples_the_weights_are_batches() -> None:
    model = UncountedLoss()
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.1, gradient_accumulation_steps=1000)
    )
    model.compile(optimizer=optimizer)
    model(np.zeros((1, 1)))
    optimizer.build(model.trainable_variables)
    steps = 1 + hvd.rank()
    x = np.full((steps, 1), float(hvd.rank()), dtype="float32")
    mean = callbacks.MetricAverageCallback()
    used = [callbacks.JoinCallback(), mean]
    history = model.fit(x, x, batch_size=1, verbose=0, callbacks=used).history
    ranks = np.arange(hvd.size())
    assert history["first"] == pytest.approx([np.average(ranks, weights=1 + ranks)])


class Inject(keras.callbacks.Callback):
    """Puts one value per epoch into the logs, this rank's own."""

    def __init__(self, values: list[float]) -> None:
        super().__init__()
        self._values = values

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["score"] = self._values[epoch]


class Snapshots(keras.callbacks.Callback):
    """Keeps the weights of every epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[Any] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.weights.append(self.model.get_weights())


@pytest.mark.parametrize("weights_only", [False, True])
def test_the_best_epoch_of_all_ranks_is_saved(weights_only: bool, tmp_path: Path) -> None:
    """By the mean the second epoch is the best; by rank 0 alone it would be the third."""
    path = tmp_path / ("best.weights.h5" if weights_only else "best.keras")
    own = [3.0, 2.0, 0.0] if hvd.rank() == 0 else [3.0, 0.0, 90.0]
    if hvd.size() == 1:
        own = [3.0, 0.0, 1.0]
    best = callbacks.BestModelCheckpoint("score", save_weights_only=weights_only, mode="min")
    best.filepath = str(path)
    model, kept = with_momentum(), Snapshots()
    fit(model, broadcast(), Inject(own), callbacks.MetricAverageCallback(), best, kept, epochs=3)
    assert path.exists() == (hvd.rank() == 0)
    if hvd.rank() == 0:
        loaded = model if weights_only else keras.saving.load_model(path)
        if weights_only:
            loaded.load_weights(path)
        assert_same_weights(loaded, kept.weights[1], tolerance=0)


def test_a_checkpoint_on_rank_0_only_keeps_nobody_waiting(tmp_path: Path) -> None:
    path = tmp_path / "best.keras"
    used: list[Any] = [broadcast()]
    if hvd.rank() == 0:
        used.append(callbacks.BestModelCheckpoint("loss", filepath=path, save_freq=1))
    fit(with_momentum(), *used, epochs=2)
    assert path.exists() == (hvd.rank() == 0)


def test_a_checkpoint_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="filepath"):
        fit(with_momentum(), callbacks.BestModelCheckpoint("loss"))
    best = callbacks.BestModelCheckpoint("loss", filepath=tmp_path / "best.keras")
    if hvd.rank() == 0 and hvd.size() > 1:
        with pytest.warns(UserWarning, match="MetricAverageCallback"):
            fit(with_momentum(), best)
    else:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*MetricAverageCallback")
            fit(with_momentum(), best)


class Corrupt(keras.callbacks.Callback):
    """Changes one weight on one rank in one step."""

    def __init__(self, variable: Any, rank: int, step: int) -> None:
        super().__init__()
        self._variable, self._rank, self._step = variable, rank, step

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == self._step and hvd.rank() == self._rank:
            self._variable.assign(self._variable + 1e-6)


@pytest.mark.parametrize(("every", "when"), [(2, "after step 4 of"), (100, "at the end of")])
def test_the_consistency_check_names_variable_and_rank(several: int, every: int, when: str) -> None:
    model = with_momentum()
    bias = model.layers[1].bias
    corrupt = Corrupt(bias, rank=several - 1, step=3)
    check = callbacks.ConsistencyCheckCallback(every=every)
    since = r" \(they were equal after step 2 of epoch 1\)" if every == 2 else ""
    match = rf"{when} epoch 1{since}: {bias.path} \(number 3, .*\) of rank {several - 1} is not"
    with pytest.raises(RuntimeError, match=match):
        fit(model, broadcast(), corrupt, check, steps=5)


def test_what_the_consistency_check_leaves_out(several: int) -> None:
    model = with_momentum(0.0)
    bias = model.layers[1].bias
    local = callbacks.ConsistencyCheckCallback(local_variables=[bias], optimizer_state=True)
    fit(model, broadcast(), Corrupt(bias, rank=several - 1, step=1), local)
    bias.trainable = False
    model = with_momentum()
    corrupt = Corrupt(model.optimizer._learning_rate, rank=0, step=1)  # after the last step
    fit(model, broadcast(), corrupt, callbacks.ConsistencyCheckCallback(), steps=2)
    strict = callbacks.ConsistencyCheckCallback(optimizer_state=True)
    with pytest.raises(RuntimeError, match=r"learning_rate \(number.*local_variables="):
        fit(model, broadcast(), corrupt, strict, steps=2)
