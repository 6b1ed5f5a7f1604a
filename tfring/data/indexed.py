"""index_dataset: a tf.data.Dataset of the samples that a cursor deals to this rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfring.data.data_cursor import PLAIN, DataCursor, check_weights


def index_dataset(
    load: Callable[[Any], Any], cursor: DataCursor, *, weights: bool | str | None = None
) -> tf.data.Dataset:
    """Returns a dataset of this rank's batches, loaded by TensorFlow from the numbers of samples.

    Each time that it is iterated it goes on where the cursor is, with the ranks that there are
    then: it gives the rest of the epoch, or the whole of the next one. So after `load_state_dict`
    or `resize` of the cursor iterate it anew. Call `cursor.commit()` after each step. Nothing of
    what was consumed is read.

    In `fit`, Keras takes the number of batches of the first epoch for that of all: where training
    may be resumed within an epoch use ElasticDataset.

    Args:
        load: a function of a tensor of numbers (int64, [samples]) that returns a batch; it becomes
            a part of the dataset, and several calls run at a time. What is not TensorFlow goes into
            tf.numpy_function.
        cursor: of this data.
        weights: whether (inputs, targets) becomes (inputs, targets, sample_weights) as in
            ElasticDataset, and given sample_weights are multiplied; by default where there are
            targets. "plain" for ranks that count alike, as with an optimizer of Keras 2.

    Raises:
        ValueError: `weights` is none of these.
        TypeError: weights are asked for and there are no targets.
    """
    check_weights(weights)

    def parts() -> Iterator[tuple[Any, float]]:
        current = cursor.begin()
        for step in range(current.steps):
            part = current.loadable(step)
            if step == current.steps - 1:
                cursor.read_to_the_end(current)
            yield part.indices, part.weight if weights == PLAIN else part.factor

    signature = (tf.TensorSpec([None], tf.int64), tf.TensorSpec([], tf.float32))
    batches = tf.data.Dataset.from_generator(parts, output_signature=signature).map(
        lambda indices, weight: _weighted(load(indices), weight, weights),
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )
    return batches.prefetch(tf.data.AUTOTUNE)


def _weighted(batch: Any, weight: Any, weights: bool | str | None) -> Any:
    with_targets = isinstance(batch, tuple) and len(batch) in (2, 3)
    if weights is False or (weights is None and not with_targets):
        return batch
    if not with_targets:
        raise TypeError(
            f"load returned a {type(batch).__name__} that is not (inputs, targets) or (inputs, "
            "targets, sample_weights), so it cannot have weights"
        )
    inputs, targets, *given = batch
    if given:
        factors = tf.nest.map_structure(lambda w: tf.cast(w, tf.float32) * weight, given[0])
        return inputs, targets, factors

    def equal(target: Any) -> Any:
        ones = [1] * (target.shape.rank - 1)
        return tf.fill([tf.shape(target)[0], *ones], weight)

    return inputs, targets, tf.nest.map_structure(equal, targets)
