"""Data of shard and shard_batches goes on where training stood, in the order of a clean run."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tiers import slow

import tfring.keras as hvd
from tfring.checkpoint import Checkpointer
from tfring.data.sharding import passes

EPOCHS, STEPS, EVERY = 3, 5, 2


class Recorded(keras.Sequential):  # type: ignore[misc]
    """A model that knows the samples of each step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.steps: list[list[int]] = []

    def train_step(self, data: Any) -> Any:
        self.steps.append(data[0].numpy()[:, 0].astype(int).tolist())
        return super().train_step(data)


class FailsAfter:
    """Fails before a step: for a callback of either Keras."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.left = after

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.left -= 1
        if self.left < 0:
            raise InterruptedError


class Crash(FailsAfter, keras.callbacks.Callback):  # type: ignore[misc]
    """Of Keras 3."""


class Batches(keras.utils.PyDataset):  # type: ignore[misc]
    """In a different order in each epoch; notes the requested batches."""

    def __init__(self, x: Any, y: Any, batch: int) -> None:
        super().__init__()
        self.data, self.batch, self.turn = (x, y), batch, 0
        self.asked: list[int] = []

    def __len__(self) -> int:
        return -(-len(self.data[0]) // self.batch)

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        first = (index + self.turn) % len(self) * self.batch
        return tuple(values[first : first + self.batch] for values in self.data)

    def on_epoch_end(self) -> None:
        self.turn += 1


class Loader:
    """Batches that can be iterated repeatedly, in a different order each time."""

    def __init__(self, x: Any, y: Any, batch: int) -> None:
        self.batches, self.turn = Batches(x, y, batch), -1

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Any:
        self.turn += 1
        order = np.random.default_rng(self.turn).permutation(len(self.batches))
        return map(self.batches.__getitem__, map(int, order))


def made(kind: str) -> Any:
    """The data, with a last step that is not whole."""
    batch = 3 * hvd.size()
    count = STEPS * batch - 1
    x = np.arange(count, dtype=np.float32)[:, None]
    arrays, samples = (x, x / count), tf.data.Dataset.from_tensor_slices((x, x / count))
    shuffled = samples.shuffle(count, seed=4)
    if kind.startswith("arrays"):
        data = hvd.shard(arrays, 3, seed=7)
        return data.map(lambda x, y: (x, y)).repeat().prefetch(9) if "repeated" in kind else data
    if kind == "samples":
        return hvd.shard(samples, 3, seed=7, shuffle_buffer=9)
    if kind == "samples, shuffled before":
        return hvd.shard(shuffled, 3, drop_remainder=True)
    if kind == "PyDataset":
        return hvd.shard_batches(Batches(*arrays, batch))
    if kind == "loader":
        return hvd.shard_batches(Loader(*arrays, batch))
    batches = shuffled.batch(batch)
    if kind == "batches without cardinality":
        return hvd.shard_batches(batches.filter(lambda x, y: True))
    if kind == "endless batches":
        return hvd.shard_batches(batches.repeat())
    return hvd.shard_batches(batches)


def recorded() -> Any:
    keras.utils.set_random_seed(3)
    model = Recorded([keras.Input((1,)), keras.layers.Dense(1)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1e-4, momentum=0.9))
    model.compile(optimizer, "mse", run_eagerly=True)
    return model


def life(kind: str, folder: Path | None, crash_after: int, steps: int = 4) -> tuple[Any, int]:
    """Trains once more; returns the model, and how many steps were trained before."""
    model = recorded()
    callbacks = hvd.fit_callbacks(Crash(crash_after))
    saving = None
    if folder is not None:
        at_once = Checkpointer(folder, asynchronous=False)  # so that none is skipped
        saving = hvd.callbacks.CheckpointCallback(at_once, every_steps=EVERY, every_epochs=None)
        callbacks.append(saving)
    how: dict[str, Any] = {"epochs": EPOCHS, "verbose": 0}
    if kind in ("arrays, repeated", "endless batches"):
        how["steps_per_epoch"] = steps  # epochs that are no passes
    with contextlib.suppress(InterruptedError):
        model.fit(made(kind), callbacks=callbacks, **how)
    position = None if saving is None else saving.position
    return model, 0 if position is None else position.step


def assert_same_weights(mine: Any, its: Any) -> None:
    """To the bit on one rank; of several the weights of ranks scale by what a life began with."""
    tolerance = 0.0 if hvd.size() == 1 else 1e-6
    for one, other in zip(mine.get_weights(), its.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=0.0)


KINDS = [
    "arrays",
    slow("samples"),
    slow("samples, shuffled before"),
    "PyDataset",
    slow("loader"),
    slow("batches"),
    slow("endless batches"),
    slow("arrays, repeated"),
]


@pytest.mark.any_ranks
@pytest.mark.parametrize("kind", KINDS)
def test_training_that_is_interrupted_again_and_again_is_that_of_a_clean_run(
    kind: str, tmp_path: Path
) -> None:
    """Each run ends after three more steps; the last may be lost."""
    folder = Path(hvd.broadcast_object(str(tmp_path)))
    clean, _ = life(kind, None, 10**6)
    steps: list[list[int]] = []
    for lives in itertools.count(1):
        model, before = life(kind, folder, 3)
        steps = steps[:before] + model.steps
        if len(steps) == len(clean.steps):
            break
        assert lives < 20, steps
    assert lives >= 5
    assert steps == clean.steps
    assert_same_weights(model, clean)


@pytest.mark.any_ranks
def test_an_epoch_without_a_known_end_begins_anew_in_its_own_order(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kind = "batches without cardinality"
    folder = Path(hvd.broadcast_object(str(tmp_path)))
    clean, _ = life(kind, None, 10**6)
    life(kind, folder, STEPS + 4)
    model, before = life(kind, folder, 10**6)
    assert before == STEPS + 3
    assert model.steps == clean.steps[STEPS:]
    if hvd.rank() == 0:
        assert "though 3 of its batches were trained" in caplog.text
        assert "assert_cardinality(batches))" in caplog.text


@pytest.mark.slow
def test_keras_2_trains_whole_epochs_in_their_order(tmp_path: Path) -> None:
    tf_keras = pytest.importorskip("tf_keras")
    folder = Path(hvd.broadcast_object(str(tmp_path)))

    class Stop(FailsAfter, tf_keras.callbacks.Callback):  # type: ignore[misc]
        """Of Keras 2."""

    def train(data: Any, epochs: int, stop: int, **more: Any) -> Any:
        tf_keras.utils.set_random_seed(3)
        model = tf_keras.Sequential([tf_keras.Input((1,)), tf_keras.layers.Dense(1)])
        optimizer = hvd.DistributedOptimizer(tf_keras.optimizers.SGD(1e-4, momentum=0.9))
        model.compile(optimizer, "mse")
        callbacks = hvd.fit_callbacks(Stop(stop), **more)
        with contextlib.suppress(InterruptedError):
            model.fit(data, epochs=epochs, verbose=0, callbacks=callbacks)
        return model

    clean = train(made("arrays"), 3, 10**6)
    how: dict[str, Any] = {"checkpoint": Checkpointer(folder / "a", asynchronous=False)}
    train(made("arrays"), 3, STEPS + 3, **how)
    resumed = train(made("arrays"), 3, 10**6, **how)
    assert_same_weights(resumed, clean)
    how = {"checkpoint": Checkpointer(folder / "b", asynchronous=False), "every_steps": 2}
    train(made("arrays"), 3, STEPS + 2, **how)
    resumed = train(made("arrays"), 3, 10**6, **how)
    assert int(resumed.optimizer.iterations) == STEPS + 1 + 2 * STEPS


def place_of(data: Any, *, stream: bool = False, within: bool = True) -> passes.Passes:
    found = passes.of(data, stream=stream, within=within)
    assert found is not None
    return found


@pytest.mark.any_ranks
def test_another_batch_goes_on_after_the_same_samples() -> None:
    size, x = hvd.size(), np.arange(100 * hvd.size())
    one, other = place_of(hvd.shard(x, 2)), hvd.shard(x, 8)
    one.begin_epoch(0, first=True)
    one.commit(50 + 30)  # 60 samples of each rank, of the second epoch
    state = one.state_dict()
    assert (state["epoch"], state["consumed"]) == (1, 60 * size)
    going_on = place_of(other.map(lambda x: x).prefetch(2))
    going_on.load_state_dict(state)
    assert going_on.trained(30) == 13 - 5
    first, second = ([len(batch) for batch in other] for _ in range(2))
    assert (first, second) == ([8] * 5, [8] * 12 + [4])
    going_on.commit(5)
    assert (going_on.state_dict()["epoch"], going_on.state_dict()["consumed"]) == (2, 0)


def test_a_place_within_other_data_is_refused_and_an_epochs_end_is_not() -> None:
    state = place_of(hvd.shard(np.arange(8 * hvd.size()), 2)).state_dict()
    other = place_of(hvd.shard(np.arange(9 * hvd.size()), 2))
    other.load_state_dict({**state, "epoch": 3})
    assert other.state_dict()["epoch"] == 3
    with pytest.raises(ValueError, match=f"samples={8 * hvd.size()}, but this data has"):
        other.load_state_dict({**state, "consumed": 2})
    with pytest.raises(ValueError, match="samples=None"):
        other.load_state_dict({"epoch": 1, "batch": 2})  # of a cursor of the user's


def test_what_has_other_steps_has_no_place() -> None:
    data = hvd.shard(np.arange(8 * hvd.size()), 2)
    assert place_of(data.map(lambda x: x).repeat().prefetch(1), stream=True).number >= 0
    for other in (data.cache(), data.unbatch(), data.take(2), data.shuffle(2), np.ones(3)):
        assert passes.of(other, stream=False, within=True) is None
