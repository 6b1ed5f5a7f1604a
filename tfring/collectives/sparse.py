"""The reduction of tf.IndexedSlices: all ranks' rows and their indices are gathered."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfring.ops import arguments, builders, library, reduce_ops
from tfring.ops.reduce_ops import Average, Sum


def check_sparse(slices: Any, name: str | None, op: int, prescale: float, postscale: float) -> None:
    """Raises NotImplementedError for what tf.IndexedSlices cannot do, TypeError for a dtype."""
    label = name or arguments.UNNAMED
    library.refuse_xla(label, "allreduce of tf.IndexedSlices")
    if op not in (Average, Sum):
        raise NotImplementedError(
            f"tensor {label}: tf.IndexedSlices can be reduced with Average and Sum, not with "
            f"{reduce_ops.name_of(op)}; make it dense with tf.convert_to_tensor"
        )
    if prescale != 1.0 or postscale != 1.0:
        raise NotImplementedError(
            f"tensor {label}: scale factors are not available for tf.IndexedSlices; make it dense "
            "with tf.convert_to_tensor"
        )
    arguments.checked_tensor(slices.values, name, library.MOVABLE, "allgather")


def sparse_allreduce(slices: Any, name: str, op: int, process_set_id: int) -> Any:
    """Returns the rows of all ranks that take part; duplicates are summed before they travel.

    Average divides by the number of ranks that took part, which is counted along the way: ranks
    that have joined do not. The rows go first, under the plain name, where a rank that brought a
    dense tensor meets the others and all are told; then the op, before anything that only one of
    the two ops needs.
    """
    distinct, position = tf.unique(slices.indices)
    summed = tf.math.unsorted_segment_sum(slices.values, position, tf.size(distinct))
    [values] = builders.allgather_op([summed], name=name, process_set_id=process_set_id)
    with tf.control_dependencies([values]):
        [indices] = builders.allgather_op(
            [distinct], name=f"{name}.indices", process_set_id=process_set_id
        )
        share = _share(f"{name}.count", op, process_set_id)
    with tf.control_dependencies([share]):
        values = tf.identity(values)
    if op == Average:
        count = tf.cast(tf.round(1.0 / share), values.dtype)
        values = values // count if values.dtype.is_integer else values / count
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def _share(name: str, op: int, process_set_id: int) -> Any:
    """Returns, for Average, one divided by the number of ranks that take part, as a float64.

    The mean of vectors that hold a 1 in the place of their rank; found with the op itself, so that
    ranks whose ops differ are told.
    """
    ops = library.load()  # read when it runs: a traced function may outlive the job
    mine = tf.one_hot(ops.tfring_rank(), ops.tfring_size(), dtype=tf.float64)
    [mixed] = builders.allreduce_op([mine], name=name, op=op, process_set_id=process_set_id)
    return tf.reduce_max(mixed)
