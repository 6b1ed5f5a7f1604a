"""shard: equally many steps on all ranks, each sample once, the same shuffle everywhere."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd
import tfring.keras as keras_hvd


def epochs_of_all(dataset: Any, epochs: int = 2) -> list[list[list[list[int]]]]:
    """The samples of each epoch, rank and step."""
    mine = [[np.ravel(b).tolist() for b in dataset] for _ in range(epochs)]
    return [list(ranks) for ranks in zip(*hvd.allgather_object(mine), strict=True)]


@pytest.mark.any_ranks
@pytest.mark.parametrize("kind", ["array", "dataset"])
@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("extra", [0, 1, 5])
def test_every_sample_once_in_equally_many_steps(kind: str, drop: bool, extra: int) -> None:
    size, batch = hvd.size(), 3
    count = 2 * batch * size + extra
    samples: Any = np.arange(count)
    if kind == "dataset":
        samples = tf.data.Dataset.from_tensor_slices(samples)
    dataset = hvd.shard(samples, batch, seed=5, drop_remainder=drop)
    epochs = epochs_of_all(dataset)
    assert epochs[0] != epochs[1], "the second epoch is not shuffled anew"
    full, rest = divmod(count, batch * size)
    repeated = 0
    if 0 < rest < size and not drop:
        repeated = rest * (size - 1) if kind == "array" else size - rest
    for ranks in epochs:
        assert {len(steps) for steps in ranks} == {full + (rest > 0 and not drop)}
        assert len(list(dataset)) == len(ranks[0]) == int(dataset.cardinality())
        assert all(len(step) == batch for steps in ranks for step in steps[:full])
        last = [len(steps[-1]) for steps in ranks]
        assert max(last) - min(last) <= 1
        seen = Counter(x for steps in ranks for step in steps for x in step)
        wanted = full * batch * size if drop else count
        assert len(seen) == (wanted if drop else count)
        assert sum(seen.values()) == wanted + repeated


@pytest.mark.any_ranks
def test_a_step_is_the_step_of_one_process() -> None:
    size, batch = hvd.size(), 2
    data = np.arange(8 * size)
    (ranks,) = epochs_of_all(hvd.shard(data, batch, seed=None), epochs=1)
    for step, together in enumerate(zip(*ranks, strict=True)):
        first = step * batch * size
        assert sorted(x for part in together for x in part) == list(
            range(first, first + batch * size)
        )


@pytest.mark.parametrize("kind", ["array", "shuffled before"])
def test_ranks_that_looked_at_the_data_alone_are_in_step_when_fit_begins(kind: str) -> None:
    count = 8 * hvd.size()
    samples: Any = np.arange(count)
    if kind != "array":
        samples = tf.data.Dataset.from_tensor_slices(samples).shuffle(count, seed=3)
    dataset = hvd.shard(samples, 2, seed=1)
    for _ in range(3 if hvd.rank() == 0 else 0):
        next(iter(dataset))
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras_hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse")
    callbacks = [keras_hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    for epochs in (1, 2):
        # The iteration after the last one has begun when the last one ends, or it has not.
        data = dataset.map(lambda x: (x[:, None], x[:, None]))
        ahead = data.repeat().prefetch(3)
        model.fit(ahead, steps_per_epoch=4, epochs=epochs, verbose=0, callbacks=callbacks)
        if hvd.rank() == 0:
            next(iter(dataset))
        model.fit(data, verbose=0, callbacks=callbacks)
        for ranks in epochs_of_all(dataset, epochs=1):
            assert sorted(x for steps in ranks for step in steps for x in step) == list(
                range(count)
            )


def test_an_iterator_can_be_saved_and_restored(tmp_path: Path) -> None:
    dataset = hvd.shard(np.arange(8 * hvd.size()), 2, seed=1)
    iterator = iter(dataset)
    next(iterator)
    saved = tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / "iterator"))
    rest = [step.tolist() for step in (b.numpy() for b in iterator)]
    restored = iter(dataset)
    tf.train.Checkpoint(iterator=restored).restore(saved)
    assert [step.tolist() for step in (b.numpy() for b in restored)] == rest
    assert len(rest) == 3


@pytest.mark.any_ranks
def test_samples_fewer_than_ranks() -> None:
    (ranks,) = epochs_of_all(hvd.shard(np.arange(1), 4), epochs=1)
    assert ranks == [[[0]]] * hvd.size()
    with pytest.raises(ValueError, match="1 samples are not enough for one batch of 4 on each"):
        hvd.shard(np.arange(1), 4, drop_remainder=True)


def test_what_cannot_be_sharded_is_refused() -> None:
    with pytest.raises(ValueError, match="repeat"):
        hvd.shard(tf.data.Dataset.range(4).repeat(), 1)
    with pytest.raises(ValueError, match="assert_cardinality"):
        hvd.shard(tf.data.Dataset.range(4).filter(lambda i: i > 1), 1)
    with pytest.raises(ValueError, match=r"rows, at least one, not \[2, 3\]"):
        hvd.shard((np.ones(2), np.ones(3)), 1)
    with pytest.raises(TypeError, match=r"list.*\(x, y\) for inputs and targets"):
        hvd.shard([np.ones(2)], 1)
    with pytest.raises(TypeError, match="list"):
        hvd.shard((["a", "b"], np.ones(2)), 1)
    with pytest.raises(TypeError, match=r"builtins\.str"):
        hvd.shard("data", 1)
    for batches in (keras.utils.PyDataset(), iter(())):
        with pytest.raises(TypeError, match=r"use hvd\.shard_batches\(data\)"):
            hvd.shard(batches, 1)
    with pytest.raises(ValueError, match="rows, at least one"):
        hvd.shard((None, None), 1)


def batched() -> dict[str, Any]:
    x, y = np.ones((24, 3), np.float32), np.ones(24)
    samples = tf.data.Dataset.from_tensor_slices((x, y))
    return {
        "batch": samples.batch(4),
        "mapped, cached and ahead": samples.batch(4)
        .map(lambda x, y: (2 * x, y))
        .cache()
        .prefetch(1),
        "whole batches": samples.batch(4, drop_remainder=True),
        "zipped": tf.data.Dataset.zip((samples.batch(4), samples.batch(4))),
        "numbers": tf.data.Dataset.range(24).batch(4),
        "padded": tf.data.Dataset.from_tensor_slices(x).padded_batch(4),
    }


@pytest.mark.parametrize("kind", batched())
def test_a_dataset_of_batches_is_refused(kind: str) -> None:
    dataset = batched()[kind]
    with pytest.raises(ValueError, match=r"of batches, not of samples.*\n.*hvd\.shard_batches\("):
        hvd.shard(dataset, 4)
    assert hvd.shard(dataset, 1, check=False).cardinality() >= 1


def test_samples_that_were_once_batches_are_taken() -> None:
    numbers = tf.data.Dataset.range(64)
    windows = numbers.batch(4, drop_remainder=True).map(lambda tokens: (tokens[:-1], tokens[1:]))
    assert len(list(hvd.shard(windows, 2))) == -(-16 // (2 * hvd.size()))
    again = numbers.batch(4).unbatch().apply(tf.data.experimental.assert_cardinality(64))
    assert len(list(hvd.shard(again, 2))) == -(-64 // (2 * hvd.size()))


def test_none_lists_and_ragged_tensors_are_what_they_are_for_keras() -> None:
    count = 4 * hvd.size()
    x = np.arange(count, dtype=np.float32)[:, None]
    for one, nothing in hvd.shard((x, None), 4):
        assert one.shape == (4, 1) and nothing is None
    for (a, b), y, weights in hvd.shard(([x, -x], x, None), 4):
        np.testing.assert_array_equal(a, -b)
        np.testing.assert_array_equal(a, y)
        assert weights is None
    words = tf.ragged.constant([[i] * (i % 3) for i in range(count)])
    mine = [row for part, _ in hvd.shard((words, x), 4) for row in part.to_list()]
    everything = [row for part in hvd.allgather_object(mine) for row in part]
    assert sorted(everything) == sorted(words.to_list())
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    assert model.fit(hvd.shard((x, x, None), 4), verbose=0).history["loss"]


class Frame:
    """As pandas, which the tests do without."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def to_numpy(self) -> Any:
        return self._values


def test_frames_of_pandas_and_series_are_what_they_are_for_keras() -> None:
    x = np.arange(8.0 * hvd.size()).reshape(-1, 2)
    for frame, series in hvd.shard((Frame(x), Frame(x[:, 1])), 4):
        np.testing.assert_array_equal(frame[:, 1:], series)


@pytest.mark.any_ranks
def test_ranks_that_differ_are_refused(several: int) -> None:
    rank = hvd.rank()
    with pytest.raises(ValueError, match=r"different samples on some ranks \(rank 0: 4, rank 1: 5"):
        hvd.shard(np.arange(4 + rank), 1)
    mine = np.arange(8.0) + 100 * rank  # each rank has loaded a part of its own
    with pytest.raises(
        ValueError, match=r"different data \(hash of some rows\).*\nGive every rank the whole"
    ):
        hvd.shard((mine, mine), 1)
    with pytest.raises(ValueError, match="different data"):
        hvd.shard(tf.data.Dataset.from_tensor_slices(mine), 1)
    with pytest.raises(ValueError, match="different element_spec"):
        hvd.shard(np.zeros((8, 1 + rank)), 1)
    assert int(hvd.shard(mine, 1, check=False).cardinality()) >= 1
    with pytest.raises(ValueError, match="different seed"):
        hvd.shard(np.arange(40), 1, seed=rank)
