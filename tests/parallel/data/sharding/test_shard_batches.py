"""shard_batches: a step of all ranks is the batch of one process, whatever gives the batches."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tiers import slow

import tfring.keras as hvd

FEATURES, CLASSES, BATCHES = 5, 3, 7


def arrays(last: int, batch: int) -> tuple[Any, Any]:
    """Inputs and targets: whole batches, and a last one of so many rows."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=(BATCHES * batch + last, FEATURES)).astype("float32")
    return x, np.tanh(x @ rng.normal(size=(FEATURES, CLASSES)).astype("float32"))


class Batches(keras.utils.PyDataset):  # type: ignore[misc]
    """In another order in each epoch."""

    def __init__(self, x: Any, y: Any, batch: int) -> None:
        super().__init__()
        self.data, self.batch, self.turn = (x, y), batch, 0

    def __len__(self) -> int:
        return -(-len(self.data[0]) // self.batch)

    def __getitem__(self, index: int) -> Any:
        first = (index + self.turn) % len(self) * self.batch
        return tuple(values[first : first + self.batch] for values in self.data)

    def on_epoch_end(self) -> None:
        self.turn += 1


def generator(x: Any, y: Any, batch: int) -> Iterator[Any]:
    for first in itertools.cycle(range(0, len(x), batch)):
        yield x[first : first + batch], y[first : first + batch]


def batches(kind: str, x: Any, y: Any, batch: int) -> Any:
    if kind == "PyDataset":
        return Batches(x, y, batch)
    if kind == "generator":
        return generator(x, y, batch)
    if kind == "without cardinality":
        spec = tuple(tf.TensorSpec([None, *values.shape[1:]], values.dtype) for values in (x, y))
        return tf.data.Dataset.from_generator(
            lambda: itertools.islice(generator(x, y, batch), BATCHES + 1), output_signature=spec
        )
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    if kind == "static":
        return dataset.batch(batch, drop_remainder=True)
    shuffled = dataset.shuffle(len(x), seed=3).batch(batch)
    return shuffled.repeat() if kind == "endless" else shuffled


def whole_batches(kind: str, *data: Any) -> Any:
    """Returns the batches in the order in which shard_batches reads them."""
    whole = batches(kind, *data)
    if kind == "PyDataset":
        whole.turn = -1  # Keras ends an epoch of its own, in which it builds the model
    if not isinstance(whole, tf.data.Dataset):
        return whole
    next(iter(whole))  # as shard_batches looks at it, which moves a shuffle on
    # Keras makes an iterator that it does not read, which must not move the shuffle on.
    return tf.data.Dataset.range(1).flat_map(lambda _: whole)


def network() -> Any:
    keras.utils.set_random_seed(3)
    hidden = keras.layers.Dense(7, activation="tanh")
    return keras.Sequential([keras.Input((FEATURES,)), hidden, keras.layers.Dense(CLASSES)])


def check(model: Any, alone: Any) -> None:
    """Compares weights, by each tensor's largest element."""
    pairs = zip(model.get_weights(), alone.get_weights(), strict=True)
    worst = max(np.abs(a - b).max() / np.abs(b).max() for a, b in pairs)
    assert worst < 1e-5, f"rank {hvd.rank()}: differs by {worst:.3g}"


def sgd() -> Any:
    return keras.optimizers.SGD(0.1)


@pytest.mark.any_ranks
@pytest.mark.parametrize(
    ("kind", "last"),
    [
        *((kind, "one row") for kind in ("dataset", "generator", "PyDataset")),
        *(slow(kind, "one row") for kind in ("endless", "static", "without cardinality")),
        ("dataset", "more rows than ranks"),
    ],
)
def test_fit_is_that_of_one_process(kind: str, last: str) -> None:
    batch = 3 * hvd.size()
    data = arrays(1 if last == "one row" else hvd.size() + 1, batch)
    how: dict[str, Any] = {"epochs": 3, "verbose": 0, "shuffle": False}
    if kind in ("endless", "generator"):
        how["steps_per_epoch"] = BATCHES + 1
    alone = network()
    alone.compile(sgd(), "mse")
    alone.fit(whole_batches(kind, *data, batch), **how)
    model = network()
    model.compile(hvd.DistributedOptimizer(sgd()), "mse")
    part = hvd.shard_batches(batches(kind, *data, batch))
    model.fit(part, **how, callbacks=hvd.fit_callbacks())
    assert int(model.optimizer.iterations) >= 20
    check(model, alone)


@pytest.mark.any_ranks
def test_a_batch_is_cut_whatever_it_is_made_of() -> None:
    count = 2 * hvd.size() + 1
    dense = np.arange(2 * count).reshape(count, 2)
    batch: dict[str, Any] = {
        "dense": dense,
        "ragged": tf.ragged.constant([[i] * (i % 3) for i in range(count)]),
        "sparse": tf.sparse.from_dense(dense),
        "texts": np.array([str(i) for i in range(count)]),
    }
    dataset = hvd.shard_batches(tf.data.Dataset.from_tensor_slices(batch).batch(count))
    (part,) = dataset
    np.testing.assert_array_equal(tf.sparse.to_dense(part["sparse"]), part["dense"])
    mine = [
        part["dense"].numpy().tolist(),
        part["ragged"].to_list(),
        part["texts"].numpy().tolist(),
    ]
    for number, name in enumerate(("dense", "ragged", "texts")):
        together = [row for each in hvd.allgather_object(mine) for row in each[number]]
        whole = batch[name]
        if name == "texts":
            assert together == [str(i).encode() for i in range(count)]
        else:
            assert together == (whole.to_list() if name == "ragged" else whole.tolist())


@pytest.mark.any_ranks
@pytest.mark.parametrize("kind", ["dataset", "generator"])
def test_each_row_counts_once_in_an_evaluation(kind: str) -> None:
    batch = 3 * hvd.size()
    x, y = arrays(1, batch)
    model = network()
    model.compile("sgd", "mse", metrics=["mae"])
    steps = BATCHES + 1
    alone = model.evaluate(x, y, batch_size=batch, verbose=0)
    if kind == "generator":
        data: Any = itertools.islice(generator(x, y, batch), steps)
        rows = [len(mine) for mine, _ in hvd.shard_batches(data, for_evaluation=True)]
    else:
        part = hvd.shard_batches(batches(kind, x, y, batch), for_evaluation=True)
        together: Any = hvd.evaluate(model, part)
        np.testing.assert_allclose(list(together.values()), alone, rtol=1e-5)
        rows = [len(mine) for mine, _ in part]
    assert sum(map(sum, hvd.allgather_object(rows))) == len(x)
    assert all(rows)


def test_a_rank_that_looked_at_the_data_alone_is_in_step_when_fit_begins() -> None:
    x, y = arrays(0, 2 * hvd.size())
    data = hvd.shard_batches(batches("dataset", x, y, 2 * hvd.size()))
    for _ in range(3 if hvd.rank() == 0 else 0):
        next(iter(data))
    model = network()
    model.compile(hvd.DistributedOptimizer(sgd()), "mse")
    model.fit(data, verbose=0, callbacks=hvd.fit_callbacks())
    rows = [row for part, _ in data for row in part.numpy()[:, 0].tolist()]
    together = [row for each in hvd.allgather_object(rows) for row in each]
    assert sorted(together) == sorted(x[:, 0].tolist())


def test_what_is_no_data_of_batches_is_refused() -> None:
    x, y = arrays(0, 4)
    with pytest.raises(TypeError, match=r"Use hvd\.shard\(.* for arrays"):
        hvd.shard_batches((x, y))
    with pytest.raises(TypeError, match=r"numpy\.ndarray"):
        hvd.shard_batches(x)
    samples = tf.data.Dataset.from_tensor_slices((x, np.arange(len(x))))
    with pytest.raises(ValueError, match=r"of samples, not of batches.*\n.*hvd\.shard\("):
        hvd.shard_batches(samples)
    with pytest.raises(ValueError, match=r"same number of rows, not \[28, 1\]"):
        next(hvd.shard_batches(iter([(x, y[:1])])))
    unequal = tf.data.Dataset.from_tensors((x, y)).map(lambda x, y: (x[: len(y) - 1], y))
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="number"):
        list(hvd.shard_batches(unequal))


@pytest.mark.any_ranks
def test_ranks_with_other_batches_are_refused(several: int) -> None:
    x, y = arrays(0, 4)
    own = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=hvd.rank()).batch(4)
    with pytest.raises(ValueError, match=r"different first batch.*rank 1: .*\n.*needs a seed"):
        hvd.shard_batches(own)
    with pytest.raises(ValueError, match="different first batch"):
        hvd.shard_batches(generator(x + hvd.rank(), y, 4))
    with pytest.raises(ValueError, match="different element_spec"):
        hvd.shard_batches(tf.data.Dataset.from_tensors(np.ones((4, 1 + hvd.rank()))))
    augmented = hvd.shard_batches(generator(x + hvd.rank(), y, 4), check=False)
    assert len(next(augmented)[0]) >= 1
