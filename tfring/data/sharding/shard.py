"""shard: this rank's batches of data that all ranks have."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfring.data.cursor import Cursor
from tfring.data.sharding import batches, passes, same_data
from tfring.runtime import topology

_DATASET_BUFFER = 10_000
_COMPARED = 8  # rows of arrays
_SEEDS = 2**31 - 2  # the largest seed of tf.data


def shard(
    data: Any,
    batch_size: int,
    seed: int | None = 0,
    *,
    drop_remainder: bool = False,
    shuffle_buffer: int | None = None,
    check: bool = True,
) -> tf.data.Dataset:
    """Returns a dataset of this rank's batches; all ranks get the same number of them.

    In every epoch all ranks shuffle alike, by the seed and the epoch's number, and each sample is
    in a batch of one rank. `fit` with a tfring callback sets the epoch, and checkpoints keep the
    place within it, for any number of ranks (`tfring help data`). In other loops each iteration is
    the next epoch. So all ranks must iterate equally often, and reading the first batch counts as
    an iteration. The batches of one step are together the batch of a single process with
    `batch_size * size()`. A collective: every rank calls it, with the same data.

    If the number of samples is not a multiple of `batch_size * size()`, the last batches are
    smaller, by at most one sample on some ranks. `fit` weights the ranks by their samples; in a
    custom loop, pass `weight_by=` to the tape. If fewer samples are left than there are ranks, each
    rank takes all of them, so the average over the ranks is right. In a tf.data.Dataset, at most
    `size() - 1` samples come twice instead.

    Args:
        data: arrays, tensors (also ragged ones) or pandas objects with one row per sample, in a
            tuple or dict, nested or not, or None in their place. The dataset gives batches of the
            same structure, with tuples for lists. Or a tf.data.Dataset of single samples with known
            cardinality. A shuffle or augmentation before `shard` must be equal on all ranks: give
            it a seed. Put anything that should differ between ranks after `shard`. Use
            `shard_batches` for data in batches.
        batch_size: samples per rank and step.
        seed: of the shuffle, equal on all ranks; None keeps the order.
        drop_remainder: leave out the samples that do not fill a batch on every rank; different ones
            in every epoch.
        shuffle_buffer: for a tf.data.Dataset: the number of samples from which the next one is
            drawn; by default all, at most 10,000. Arrays are shuffled as a whole.
        check: refuse a dataset that was made by `batch`, and compare some rows of all ranks. For a
            dataset this reads the first sample.

    Raises:
        ValueError: the arrays differ in their number of rows; a dataset is infinite, does not know
            its cardinality or was made by `batch`; or there are too few samples. On all ranks: the
            ranks' samples, batch_size, seed or other arguments differ.
        TypeError: the data has an unsupported type.
        tf.errors.FailedPreconditionError: tfring is not initialized.
    """
    if check and isinstance(data, tf.data.Dataset):
        _refuse_batches(data)
    rows, samples, count = _samples(data)
    buffer = count if rows is not None else shuffle_buffer or min(count, _DATASET_BUFFER)
    mine = {
        "samples": count,
        "batch_size": batch_size,
        "seed": seed,
        "drop_remainder": drop_remainder,
        "shuffle_buffer": buffer,
        "element_spec": str(samples.element_spec if rows is None else _specs(rows)),
        "data (hash of some rows)": _digest(rows, samples) if check and count > 0 else "",
    }
    number = same_data.require("shard", mine)
    _require(batch_size >= 1 and count >= 1, count, batch_size)
    together = batch_size * topology.size()
    _require(count >= together or not drop_remainder, count, batch_size)
    start = Cursor(count, (seed or 0) % _SEEDS, shuffle=seed is not None)
    through = passes.Passes(number, start, together, drop_remainder=drop_remainder, source=samples)
    if rows is None:
        parts = through.dataset(
            _rest_of_samples(samples, start, buffer, batch_size, drop_remainder)
        )
    else:
        parts = _rows_of(through.dataset(_rest_of_order(start, together, drop_remainder)), rows)
    return passes.endings(parts, through)


def _rest_of_samples(
    samples: tf.data.Dataset, start: Cursor, buffer: int, batch_size: int, drop: bool
) -> Callable[[Any, Any], tf.data.Dataset]:
    """Returns a function that gives this rank's batches of the rest of an epoch."""
    rank, size = topology.rank(), topology.size()

    def rest(epoch: Any, consumed: Any) -> tf.data.Dataset:
        chosen = _shuffled(samples, buffer, start.seed, epoch) if start.shuffle else samples
        over = (start.samples - consumed) % (batch_size * size)
        if drop:
            chosen = chosen.take(start.samples - over)
        else:
            missing = tf.where((over > 0) & (over < size), size - over, 0)
            chosen = chosen.concatenate(samples.repeat().take(missing))
        return chosen.skip(consumed).shard(size, rank).batch(batch_size)

    return rest


def _shuffled(samples: tf.data.Dataset, buffer: int, seed: int, epoch: Any) -> tf.data.Dataset:
    """Returns samples in an order that depends on seed and epoch only."""
    # Overrides tf.random.set_seed, in the graph of this function only.
    tf.compat.v1.get_default_graph().seed = seed + 1
    return samples.shuffle(buffer, seed=epoch, reshuffle_each_iteration=False)


def _rest_of_order(
    start: Cursor, together: int, drop: bool
) -> Callable[[Any, Any], tf.data.Dataset]:
    """Returns a function that gives all ranks' row numbers for the rest of an epoch."""

    def order(epoch: Any) -> Any:
        return dataclasses.replace(start, epoch=int(epoch)).order().astype(np.int64)

    def rest(epoch: Any, consumed: Any) -> tf.data.Dataset:
        numbers = tf.ensure_shape(tf.numpy_function(order, [epoch], tf.int64), [start.samples])
        end = start.samples - (start.samples - consumed) % together if drop else start.samples
        firsts = tf.data.Dataset.range(consumed, end, together)
        return firsts.map(lambda first: numbers[first : first + together])

    return rest


def _rows_of(numbers: tf.data.Dataset, rows: Any) -> tf.data.Dataset:
    """Returns this rank's batches, given the row numbers of all ranks' batches."""
    rank, size = topology.rank(), topology.size()
    return numbers.map(
        lambda batch: _gather(rows, batches.part(batch, rank, size)),
        num_parallel_calls=tf.data.AUTOTUNE,
    )


def _gather(rows: Any, numbers: Any) -> Any:
    return tf.nest.map_structure(
        lambda values: None if values is None else tf.gather(values, numbers), rows
    )


def _samples(data: Any) -> tuple[Any, Any, int]:
    """Returns tensors with all rows, None, and the number of rows.

    For a dataset: None, the dataset, and its cardinality.
    """
    if isinstance(data, tf.data.Dataset):
        return None, data, _cardinality(data)
    rows = tf.nest.map_structure(_tensor, _tuples(data))
    return rows, None, _rows(rows)


def _cardinality(dataset: tf.data.Dataset) -> int:
    count = int(dataset.cardinality())
    if count >= 0:
        return count
    if count == tf.data.INFINITE_CARDINALITY:
        raise ValueError(
            "shard needs a finite dataset, to give every sample once per epoch. Call repeat() on "
            "the result of shard"
        )
    raise ValueError(
        "the dataset does not know its cardinality, so the ranks cannot take equally many steps. "
        "Set it with dataset.apply(tf.data.experimental.assert_cardinality(samples)), or use "
        "hvd.shard_batches(dataset), which does not need it"
    )


def _refuse_batches(dataset: tf.data.Dataset) -> None:
    """Raises ValueError if the elements are batches; samples may be made by `batch`, too.

    Such samples are windows of numbers or tokens, all of one length, so without a second dimension.
    """
    shapes = [getattr(spec, "shape", None) for spec in tf.nest.flatten(dataset.element_spec)]
    ranked = [shape for shape in shapes if shape is not None and shape.rank]
    firsts = {shape[0] for shape in ranked}
    windows = None not in firsts and all(shape.rank == 1 for shape in ranked)
    if len(ranked) == len(shapes) and len(firsts) == 1 and not windows and _batched(dataset):
        raise ValueError(
            "shard got a dataset of batches, not of samples: its elements have the shapes "
            f"{', '.join(map(str, shapes))}.\n"
            "Use hvd.shard_batches(dataset), which takes this rank's rows of each batch, or "
            "leave out batch(). If each element is one sample, pass check=False."
        )


def _batched(dataset: Any) -> bool:
    """Returns whether `batch` or a similar op made the elements, or the inputs of their map."""
    name = type(dataset).__name__
    if any(part in name for part in ("Unbatch", "FlatMap", "Interleave", "Window", "Generator")):
        return "GroupByWindow" in name
    return "Batch" in name or any(map(_batched, dataset._inputs()))


def _tuples(data: Any, inner: bool = False) -> Any:
    """Returns tuples for lists of arrays, as Keras does; TensorFlow would make tensors of them."""
    if isinstance(data, dict):
        return {key: _tuples(value, True) for key, value in data.items()}
    arrays = isinstance(data, list) and inner and all(hasattr(each, "shape") for each in data)
    if isinstance(data, list) and not arrays:
        raise TypeError(
            "shard got a list. Give it (x, y) for inputs and targets, ([a, b], y) for several "
            "inputs, np.array(values) for a list of numbers or texts"
        )
    return tuple(_tuples(each, True) for each in data) if isinstance(data, (tuple, list)) else data


def _tensor(values: Any) -> Any:
    if values is None:
        return None
    if hasattr(values, "to_numpy"):  # of pandas
        values = values.to_numpy()
        values = values[:, None] if values.ndim == 1 else values  # as Keras does
    if isinstance(values, tf.RaggedTensor):
        return values
    if isinstance(values, (np.ndarray, tf.Tensor)) and len(values.shape):
        return tf.convert_to_tensor(values)
    raise TypeError(
        "shard needs a tf.data.Dataset, or arrays or tensors with one row per sample, not "
        f"{type(values).__module__}.{type(values).__name__}.\n"
        "For tf.SparseTensor use shard(tf.data.Dataset.from_tensor_slices(data), ...). For data "
        "in batches, such as a PyDataset or a generator, use hvd.shard_batches(data)."
    )


def _rows(rows: Any) -> int:
    counts = [int(values.shape[0]) for values in tf.nest.flatten(rows) if values is not None]
    if len(set(counts)) != 1:
        raise ValueError(
            f"shard needs arrays with the same number of rows, at least one, not {counts}"
        )
    return counts[0]


def _specs(rows: Any) -> list[str]:
    return [f"{r.shape} {r.dtype.name}" for r in tf.nest.flatten(rows) if r is not None]


def _digest(rows: Any, samples: Any) -> str:
    """Returns a hash of some rows, or of the first sample.

    Also on a single rank: reading a dataset moves a shuffle on.
    """
    if rows is None:
        return same_data.digest(passes.first(samples))
    numbers = np.linspace(0, _rows(rows) - 1, _COMPARED).astype(np.int64)
    return same_data.digest(_gather(rows, numbers))


def _require(enough: bool, count: int, batch_size: int) -> None:
    if not enough:
        raise ValueError(
            f"rank {topology.rank()}: {count} samples are not enough for one batch of "
            f"{batch_size} on each of {topology.size()} ranks. Use a smaller batch_size"
        )
