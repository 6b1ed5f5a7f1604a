"""shard: this rank's batches of data that all ranks have."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfring import topology
from tfring.collectives import objects
from tfring.sharding import passes

_DATASET_BUFFER = 10_000
_ORDER = "order by tf.data's shuffle, which depends on tf.random.set_seed"


def shard(
    data: Any,
    batch_size: int,
    seed: int | None = 0,
    *,
    drop_remainder: bool = False,
    shuffle_buffer: int | None = None,
) -> tf.data.Dataset:
    """Returns a dataset of this rank's batches; all ranks get the same number of them.

    In every epoch (each time that the dataset is iterated) all ranks shuffle alike, and each sample
    is in a batch of one rank. So all ranks must iterate it equally often; a look at the first batch
    counts, but `fit` with a callback of tfring's makes up for what was before it. The batches of
    one step are together those that a single process would take with `batch_size * size()`. A
    collective: every rank calls it, with the same data.

    Where the number of samples is no multiple of `batch_size * size()`, the last batches are
    smaller, by at most one sample on some ranks. `fit` weights the ranks by their samples; a loop
    of your own says `weight_by=` to its tape. If fewer are left than there are ranks, at most
    `size() - 1` samples come twice in an epoch.

    Args:
        data: Arrays or tensors with one row per sample, in a tuple or dict, nested or not; the
            dataset gives batches of the same structure. Or a tf.data.Dataset of single samples with
            known cardinality. What shuffles or augments it before has to give the same on all
            ranks: with a seed; what shall differ between ranks comes after `shard`.
        batch_size: samples per rank and step.
        seed: of the shuffle, the same on all ranks; None keeps the order.
        drop_remainder: leave out the samples that do not fill a batch on every rank, others in
            every epoch.
        shuffle_buffer: for a tf.data.Dataset: among how many samples the next one is chosen;
            all of them, at most 10,000, by default. Arrays are shuffled as a whole.

    Raises:
        ValueError: the arrays differ in their number of rows; a dataset is infinite or does not
            know its cardinality; there are too few samples; or the ranks differ in the number of
            samples, batch_size, seed or the rest (on all ranks).
        TypeError: the data is of another kind.
        tf.errors.FailedPreconditionError: tfring is not initialized.
    """
    rows, samples, count = _samples(data)
    buffer = count if rows is not None else shuffle_buffer or min(count, _DATASET_BUFFER)
    number = _refuse_different_ranks(count, batch_size, seed, drop_remainder, buffer)
    size = topology.size()
    rest = count % (batch_size * size)
    chosen = samples
    if seed is not None:
        chosen = samples.shuffle(buffer, seed=seed)
    if drop_remainder:
        _require(count >= batch_size * size, count, batch_size)
        chosen = chosen.take(count - rest)
    elif 0 < rest < size:
        chosen = chosen.concatenate(samples.repeat().take(size - rest))
    if seed is not None:
        chosen = passes.Passes(chosen, number).count(int(chosen.cardinality()))
    batches = chosen.shard(size, topology.rank()).batch(batch_size)
    return _loaded(batches, rows)


def _loaded(batches: tf.data.Dataset, rows: Any) -> tf.data.Dataset:
    """Returns batches of rows for batches of their numbers, if there are rows; ahead of use."""
    if rows is not None:
        batches = batches.map(
            lambda numbers: tf.nest.map_structure(lambda values: tf.gather(values, numbers), rows),
            num_parallel_calls=tf.data.AUTOTUNE,
        )
    options = tf.data.Options()
    options.deterministic = True  # the ranks count on the same order
    # An iterator can be saved though the count of iterations is no part of it.
    options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.WARN
    return batches.prefetch(tf.data.AUTOTUNE).with_options(options)


def _samples(data: Any) -> tuple[Any, tf.data.Dataset, int]:
    """Returns tensors with all rows, a dataset of their numbers, and how many there are.

    Of a dataset: None, itself, and its cardinality.
    """
    if isinstance(data, tf.data.Dataset):
        return None, data, _cardinality(data)
    rows = tf.nest.map_structure(_tensor, _without_lists(data))
    count = _rows(rows)
    return rows, tf.data.Dataset.range(count), count


def _cardinality(dataset: tf.data.Dataset) -> int:
    count = int(dataset.cardinality())
    if count >= 0:
        return count
    if count == tf.data.INFINITE_CARDINALITY:
        raise ValueError(
            "shard needs a finite dataset, to give every sample once per epoch: call repeat() on "
            "what it returns"
        )
    raise ValueError(
        "the dataset does not know its cardinality, so the ranks cannot take equally many steps: "
        "say it with dataset.apply(tf.data.experimental.assert_cardinality(samples)). A dataset "
        "of batches is taken apart by unbatch()"
    )


def _without_lists(data: Any) -> Any:
    """Refuses lists: TensorFlow takes them for tensors in one place and for tuples in another."""
    if isinstance(data, list):
        raise TypeError("shard got a list: give it a tuple of arrays, or one array")
    if isinstance(data, dict):
        return {key: _without_lists(value) for key, value in data.items()}
    return tuple(map(_without_lists, data)) if isinstance(data, tuple) else data


def _tensor(values: Any) -> Any:
    if isinstance(values, (np.ndarray, tf.Tensor)) and len(values.shape):
        return tf.convert_to_tensor(values)
    raise TypeError(
        "shard needs a tf.data.Dataset, or arrays or tensors with one row per sample, not "
        f"{type(values).__module__}.{type(values).__name__}"
    )


def _rows(rows: Any) -> int:
    counts = [int(values.shape[0]) for values in tf.nest.flatten(rows)]
    if len(set(counts)) != 1:
        raise ValueError(f"shard needs arrays with the same number of rows, at least one: {counts}")
    return counts[0]


def _refuse_different_ranks(
    count: int, batch_size: int, seed: int | None, drop_remainder: bool, buffer: int
) -> int:
    """Compares; returns the number of this call, the same on all ranks."""
    mine = {
        "samples": count,
        "batch_size": batch_size,
        "seed": seed,
        "drop_remainder": drop_remainder,
        "shuffle_buffer": buffer,
        _ORDER: _probe(seed),
    }
    everywhere = objects.allgather_json([passes.next_number(), mine], name="tfring.shard")
    for what in mine:
        values = [each[what] for _, each in everywhere]
        if any(value != values[0] for value in values):
            listed = ", ".join(f"rank {rank}: {value}" for rank, value in enumerate(values))
            raise ValueError(
                f"rank {topology.rank()}: shard got another {what} on some ranks ({listed}): give "
                "it the whole data, the same arguments and the same tf.random.set_seed on every "
                "rank; hvd.set_seed(seed) sets that"
            )
    _require(batch_size >= 1 and count >= 1, count, batch_size)
    return passes.agree_on([number for number, _ in everywhere])


def _probe(seed: int | None) -> list[int]:
    """Returns numbers that are equal on two ranks if tf.data shuffles alike there."""
    if seed is None:
        return []
    numbers = tf.data.Dataset.range(1000).shuffle(1000, seed=seed).take(8)
    return [int(number) for number in numbers]


def _require(enough: bool, count: int, batch_size: int) -> None:
    if not enough:
        raise ValueError(
            f"rank {topology.rank()}: {count} samples are not enough for one batch of {batch_size} "
            f"on each of {topology.size()} ranks"
        )
