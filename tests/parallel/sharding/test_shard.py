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
@pytest.mark.parametrize("extra", [0, 1, 3, 5])
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
    repeated = size - rest if 0 < rest < size and not drop else 0
    for ranks in epochs:
        assert {len(steps) for steps in ranks} == {full + (rest > 0 and not drop)}
        assert len(list(dataset)) == len(ranks[0]) == int(dataset.cardinality())
        assert all(len(step) == batch for steps in ranks for step in steps[:full])
        last = [len(steps[-1]) for steps in ranks]
        assert max(last) - min(last) <= 1
        seen = Counter(x for steps in ranks for step in steps for x in step)
        wanted = full * batch * size if drop else count
        assert len(seen) >= wanted - (repeated if kind == "array" else 0)
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


def test_structures_stay_together_and_can_be_fitted() -> None:
    size = hvd.size()
    x = np.arange(12 * size, dtype=np.float32)[:, None]
    data = ({"a": x, "b": -x}, 3 * x)
    dataset = hvd.shard(data, 2, seed=1)
    for inputs, y in dataset:
        np.testing.assert_array_equal(inputs["a"], -inputs["b"])
        np.testing.assert_array_equal(3 * inputs["a"], y)
    inputs = {name: keras.Input((1,), name=name) for name in ("a", "b")}
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Add()(list(inputs.values()))))
    model.compile("sgd", "mse")
    assert len(model.fit(dataset, epochs=2, verbose=0).history["loss"]) == 2


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
    with pytest.raises(ValueError, match=r"rows, at least one: \[2, 3\]"):
        hvd.shard((np.ones(2), np.ones(3)), 1)
    with pytest.raises(TypeError, match="list"):
        hvd.shard([np.ones(2)], 1)
    with pytest.raises(TypeError, match=r"builtins\.str"):
        hvd.shard("data", 1)


@pytest.mark.any_ranks
def test_ranks_that_differ_are_refused(several: int) -> None:
    rank = hvd.rank()
    with pytest.raises(ValueError, match=r"another samples on some ranks \(rank 0: 4, rank 1: 5"):
        hvd.shard(np.arange(4 + rank), 1)
    with pytest.raises(ValueError, match="another seed"):
        hvd.shard(np.arange(40), 1, seed=rank)
    tf.random.set_seed(rank)
    try:
        with pytest.raises(ValueError, match=r"tf\.random\.set_seed"):
            hvd.shard(np.arange(40), 1)
    finally:
        tf.random.set_seed(0)
