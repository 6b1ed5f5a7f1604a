"""Mean and variance per channel over the samples of all ranks, for SyncBatchNormalization.

Every rank sends the count, mean and variance of its own samples, per channel, in one allgather. The
moments of the whole batch follow by the parallel formula of Chan, Golub and LeVeque ("Updating
formulae and a pairwise algorithm for computing sample variances", 1979). It stays exact if the mean
is much larger than the deviation. All ranks compute from the same rows, so their moving statistics
are equal to the last bit.

The gradient is that of the sum of all ranks' losses. tfring averages the gradients of the weights,
so the result is what one process gets from the mean loss of the whole batch. If ranks are weighted,
rank i's gradients are multiplied by its d later, so here each loss j counts d_j / d_i.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfring.collectives import allgather, allreduce
from tfring.ops import backward, names, reduce_ops
from tfring.runtime import process_sets


def local_statistics(values: Any, mask: Any, axes: Sequence[int]) -> Any:
    """Returns count, mean and variance of this rank's samples, of shape [3, channels]."""
    if mask is None:
        counted = tf.ones_like(values)
    else:
        present = tf.broadcast_to(tf.cast(mask, tf.bool)[..., tf.newaxis], tf.shape(values))
        # Masked values may be inf or nan, which a factor of zero would not remove.
        values = tf.where(present, values, tf.zeros_like(values))
        counted = tf.cast(present, values.dtype)
    count = tf.reduce_sum(counted, axes, keepdims=True)
    mean = tf.math.divide_no_nan(tf.reduce_sum(values, axes, keepdims=True), count)
    squares = counted * tf.math.squared_difference(values, mean)
    variance = tf.math.divide_no_nan(tf.reduce_sum(squares, axes, keepdims=True), count)
    return tf.stack([tf.reshape(part, [-1]) for part in (count, mean, variance)])


def statistics_of_all(local: Any, process_set: Any) -> tuple[Any, Any]:
    """Returns mean and variance, of shape [channels], of the samples of all ranks."""
    # Counted per trace, like default names: Keras names layers differently on each rank.
    name = names.collective_name(
        "sync_batch_norm", None, process_set_id=process_sets.checked_id(process_set)
    )

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def of_all(local: Any) -> Any:
        rows = allgather.allgather(
            local[tf.newaxis], name=name, ignore_name_scope=True, process_set=process_set
        )
        counts, means, variances = tf.unstack(rows, num=3, axis=1)
        total = tf.reduce_sum(counts, 0)
        shares = tf.math.divide_no_nan(counts, total)
        mean = tf.reduce_sum(shares * means, 0)
        variance = tf.reduce_sum(shares * (variances + tf.math.squared_difference(means, mean)), 0)

        def gradient(mean_gradient: Any, variance_gradient: Any) -> Any:
            by_mean, by_variance = backward.weighted(
                [mean_gradient, variance_gradient],
                lambda own: allreduce.bucket_allreduce(
                    own, name=f"grad.{name}", op=reduce_ops.Sum, process_set=process_set
                ),
            )
            share = tf.math.divide_no_nan(local[0], total)
            to_mean = share * (by_mean + 2.0 * (local[1] - mean) * by_variance)
            return tf.stack([tf.zeros_like(share), to_mean, share * by_variance])

        return (mean, variance), gradient

    mean, variance = of_all(local)
    return mean, variance


def ranks_of(process_set: Any) -> list[int]:
    """Returns the ranks of a process set, or of the list in a saved model."""
    return list(getattr(process_set, "ranks", process_set))


def registered(process_set: Any) -> Any:
    """Returns a process set for collectives; raises ValueError for ranks from a saved model."""
    if process_set is None:
        return process_sets.global_process_set
    if isinstance(process_set, process_sets.ProcessSet):
        return process_set
    ranks = ranks_of(process_set)
    raise ValueError(
        f"this SyncBatchNormalization was saved with the process set of ranks {ranks}: set its "
        "process_set to a registered ProcessSet, or to None for all ranks, before training"
    )
