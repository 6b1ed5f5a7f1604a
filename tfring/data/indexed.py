"""index_dataset: a tf.data.Dataset of this rank's samples, by a cursor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfring.data.data_cursor import PLAIN, DataCursor, check_weights


def index_dataset(
    load: Callable[[Any], Any], cursor: DataCursor, *, weights: bool | str | None = None
) -> tf.data.Dataset:
    """Returns a dataset of this rank's batches, which TensorFlow loads by the numbers of samples.

    Each iteration begins at the cursor's place, with the ranks of that time. It gives the rest of
    the epoch, or the whole next one. So start a new iteration after `load_state_dict` or `resize`
    of the cursor. Call `cursor.commit()` after each step. Consumed samples are not read.

    Keras' `fit` takes the number of batches of the first epoch for all epochs. To resume within an
    epoch of `fit`, use ElasticDataset.

    Args:
        load: a function of a tensor of numbers (int64, [samples]) that returns a batch. It becomes
            part of the dataset, and several calls run at a time. Put code that is not TensorFlow
            into tf.numpy_function.
        cursor: of this data.
        weights: whether (inputs, targets) becomes (inputs, targets, sample_weights) as in
            ElasticDataset, and given sample_weights are multiplied; by default if there are
            targets. "plain" if ranks weigh the same, as with an optimizer of Keras 2.

    Raises:
        ValueError: `weights` is invalid.
        TypeError: weights are requested, but there are no targets.
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
            f"load returned a {type(batch).__name__}. To have weights, it must return (inputs, "
            "targets) or (inputs, targets, sample_weights)"
        )
    inputs, targets, *given = batch
    if given:
        factors = tf.nest.map_structure(lambda w: tf.cast(w, tf.float32) * weight, given[0])
        return inputs, targets, factors

    def equal(target: Any) -> Any:
        ones = [1] * (target.shape.rank - 1)
        return tf.fill([tf.shape(target)[0], *ones], weight)

    return inputs, targets, tf.nest.map_structure(equal, targets)
