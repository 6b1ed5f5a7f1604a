"""shard_batches: this rank's rows of batches that all ranks have."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfring.data.cursor import Cursor
from tfring.data.sharding import passes, same_data
from tfring.runtime import topology

_LOOKED_AT = 2  # batches of a Python object, to learn which dimensions vary; as Keras does


def shard_batches(batches: Any, *, for_evaluation: bool = False, check: bool = True) -> Any:
    """Returns this rank's rows of each batch; together the ranks' rows are the batch.

    So batches are global, of `batch_size * size()` rows, and each rank reads all of them. A rank
    takes consecutive rows. Ranks may differ by one row: `fit` weights them by their rows; in a
    custom loop, pass `weight_by=` to the tape. If a batch has fewer rows than there are ranks, each
    rank takes all of them, so the average over the ranks is that of the batch. (Losses that are
    sums, with op=Sum, need data without such a batch.)

    Neither a cardinality nor a length is needed: use `steps_per_epoch` and endless data as in one
    process. All ranks must read the same batches in the same order, so a shuffle needs a seed, and
    must iterate equally often (as for `shard`). Put anything that should differ between ranks, such
    as augmentation, after it. As for `shard`, checkpoints keep the place, except in a generator. A
    collective: every rank calls it, with the same data.

    Args:
        batches: a tf.data.Dataset of batches; a keras.utils.PyDataset or another object that can be
            iterated repeatedly; or a generator or another iterator. Batches are arrays or tensors
            (also ragged and sparse ones), or tuples and dicts of them, with one row per sample.
        for_evaluation: a rank without rows of a batch leaves it out, so each row counts once in the
            metrics. Only for `hvd.evaluate` and `validation_data`: ranks that train must take
            equally many steps.
        check: compare the first batch of all ranks. This reads the batch, which moves a shuffle on.

    Returns:
        For an iterator, a generator; otherwise a tf.data.Dataset. It reads Python objects on one
        thread, in their order, and calls their `on_epoch_end` when the next epoch begins.

    Raises:
        ValueError: on all ranks: the ranks differ in the first batch or in the arguments. Or a
            batch has arrays with different numbers of rows.
        TypeError: the data has an unsupported type.
        tf.errors.FailedPreconditionError: tfring is not initialized.
    """
    rank, size = topology.rank(), topology.size()
    if isinstance(batches, Iterator):
        first = list(itertools.islice(batches, 1))
        _compare(None, first if check else [], for_evaluation)
        parts = (part(b, rank, size, for_evaluation) for b in itertools.chain(first, batches))
        return (rows for rows in parts if not for_evaluation or _rows(rows))
    data, rest = _rest_of(batches)
    _refuse_samples(data)
    # Also on a single rank: reading moves a shuffle on, and any number of ranks should train alike.
    number = _compare(data.element_spec, passes.first(data) if check else [], for_evaluation)
    whole = isinstance(data.element_spec, tuple)

    def mine(*batch: Any) -> Any:
        return part(batch if whole else batch[0], rank, size, for_evaluation)

    start = Cursor(int(data.cardinality()), shuffle=False)
    source = data if rest is None else None
    through = passes.Passes(number, start, source=source)
    after = rest or (lambda _, trained: data.skip(trained))
    parts = through.dataset(after).map(mine, num_parallel_calls=tf.data.AUTOTUNE)
    if for_evaluation:
        return passes.endings(parts.filter(lambda *rows: _rows(rows) > 0), None)
    return passes.endings(parts, through)


def _compare(spec: Any, first: list[Any], for_evaluation: bool) -> int:
    mine = {"for_evaluation": for_evaluation, "element_spec": str(spec)}
    return same_data.require(
        "shard_batches", {**mine, "first batch (its hash)": same_data.digest(first)}
    )


def part(batch: Any, rank: int, size: int, for_evaluation: bool = False) -> Any:
    """Returns a rank's rows of a batch; numbers of rows may be tensors."""
    count = _rows(batch)
    low, high = count * rank // size, count * (rank + 1) // size
    if not for_evaluation:
        if isinstance(count, int):
            low, high = (0, count) if count < size else (low, high)
        else:
            low, high = tf.where(count < size, 0, low), tf.where(count < size, count, high)
    return tf.nest.map_structure(lambda values: _slice(values, low, high), batch)


def _slice(values: Any, low: Any, high: Any) -> Any:
    if isinstance(values, tf.SparseTensor):
        first = tf.one_hot(0, values.shape.rank, tf.cast(low, tf.int64), dtype=tf.int64)
        lengths = tf.concat([[tf.cast(high - low, tf.int64)], values.dense_shape[1:]], 0)
        return tf.sparse.slice(values, first, lengths)
    return None if values is None else values[low:high]


def _rows(batch: Any) -> Any:
    """Returns the number of rows of a batch: an int, or a tensor if a graph does not know it."""
    counts = [_rows_of(values) for values in tf.nest.flatten(batch) if values is not None]
    known = {count for count in counts if isinstance(count, int)}
    if not counts or len(known) > 1:
        raise ValueError(
            f"shard_batches needs batches of arrays with the same number of rows, not {counts}"
        )
    first = known.pop() if known else counts[0]
    for count in counts:
        if not isinstance(count, int):
            tf.debugging.assert_equal(
                count,
                first,
                "shard_batches got a batch of arrays with different numbers of "
                "rows. Give each array one row per sample",
            )
    return first


def _rows_of(values: Any) -> Any:
    shape: Any = getattr(values, "shape", ())
    if not len(shape):
        raise TypeError(
            "shard_batches needs batches of arrays or tensors with one row per sample, not "
            f"{type(values).__module__}.{type(values).__name__}"
        )
    if shape[0] is not None:
        return int(shape[0])
    if isinstance(values, tf.RaggedTensor):
        return tf.cast(values.nrows(), tf.int32)
    if isinstance(values, tf.SparseTensor):
        return tf.cast(values.dense_shape[0], tf.int32)
    return tf.shape(values)[0]


def _refuse_samples(data: tf.data.Dataset) -> None:
    for spec in tf.nest.flatten(data.element_spec):
        if getattr(spec, "shape", None) == []:
            raise ValueError(
                f"shard_batches got a dataset of samples, not of batches: {data.element_spec}.\n"
                "Use hvd.shard(dataset, batch_size), or dataset.batch(batch_size * hvd.size()) "
                "before shard_batches."
            )


def _rest_of(batches: Any) -> tuple[tf.data.Dataset, Callable[[Any, Any], Any] | None]:
    """Returns a dataset of batches, and a function that gives the rest of a pass."""
    if isinstance(batches, tf.data.Dataset):
        return batches, None
    if isinstance(batches, (tuple, list, dict, str)) or hasattr(batches, "shape"):
        raise TypeError(
            "shard_batches needs a dataset, PyDataset or generator of batches, not "
            f"{type(batches).__module__}.{type(batches).__name__}. Use hvd.shard((x, y), "
            "batch_size) for arrays"
        )
    length = len(batches) if hasattr(batches, "__len__") else None
    count = getattr(batches, "num_batches", length)  # None for an endless PyDataset
    indexed = hasattr(batches, "__getitem__")
    begin = _numbered(batches, count) if indexed else lambda epoch, trained: iter(batches)
    seen = [_tuples(batch) for batch in itertools.islice(begin(0, 0), _LOOKED_AT)]
    if not seen:
        raise ValueError("shard_batches got data without a batch. Check the dataset or generator")

    def spec(*values: Any) -> tf.TensorSpec:
        tensors = [tf.convert_to_tensor(each) for each in values]
        sizes = zip(*(tensor.shape for tensor in tensors), strict=True)
        same = [each[0] if len(set(each)) == 1 else None for each in sizes]
        return tf.TensorSpec([None, *same[1:]], tensors[0].dtype)

    signature = tf.nest.map_structure(spec, *seen)

    def rest(epoch: Any, trained: Any) -> tf.data.Dataset:
        return tf.data.Dataset.from_generator(
            lambda *place: map(_tuples, begin(*map(int, place))),
            args=(epoch, trained),
            output_signature=signature,
        )

    whole = rest(0, 0)
    if count is not None or indexed:
        known = tf.data.INFINITE_CARDINALITY if count is None else count
        whole = whole.apply(tf.data.experimental.assert_cardinality(known))
    return whole, rest if indexed else None


def _numbered(batches: Any, count: int | None) -> Callable[[int, int], Iterator[Any]]:
    """Returns a function that begins with the rest of a pass of a PyDataset or a similar object."""
    ended = 0  # passes whose end it knows

    def begin(epoch: int, trained: int) -> Iterator[Any]:
        nonlocal ended
        for _ in range(ended, epoch):
            getattr(batches, "on_epoch_end", lambda: None)()
        ended = max(ended, epoch)
        numbers = itertools.count(trained) if count is None else range(trained, count)
        return map(batches.__getitem__, numbers)

    return begin


def _tuples(batch: Any) -> Any:
    """Returns a batch with tuples for lists, which tf.data would treat as arrays."""
    if isinstance(batch, dict):
        return {key: _tuples(value) for key, value in batch.items()}
    return tuple(map(_tuples, batch)) if isinstance(batch, (tuple, list)) else batch
