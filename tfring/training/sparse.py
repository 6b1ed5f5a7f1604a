"""Reduces tf.IndexedSlices, the gradients of embedding tables.

Each rank first sums its rows of one index. Then either all rows are gathered, or each rank makes
its gradient dense and that is reduced. Gathering moves the rows of all ranks, the dense way about
two times the table, whatever the rows; so with "auto" the ranks add up their rows, in a collective
of a few bytes, and all choose the smaller. They choose anew in every step, without a retrace.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfring.collectives import allgather, allreduce
from tfring.ops import reduce_ops


def times(gradient: Any, factor: Any) -> Any:
    """Returns a gradient, of any kind and also None, times a number or scalar tensor."""
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        values = times(gradient.values, factor)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    if gradient.dtype in (tf.float16, tf.bfloat16):  # the factor may be out of their range
        wide = tf.cast(gradient, tf.float32) * tf.cast(factor, tf.float32)
        return tf.cast(wide, gradient.dtype)
    if gradient.dtype.is_integer:
        wide = tf.cast(gradient, tf.float64) * tf.cast(factor, tf.float64)
        return tf.cast(wide, gradient.dtype)
    return gradient * tf.cast(factor, gradient.dtype)


@contextlib.contextmanager
def device(name: str) -> Iterator[None]:
    """Places operations; "" leaves that to TensorFlow."""
    if not name:
        yield
        return
    with tf.device(name):
        yield


@dataclasses.dataclass(frozen=True)
class SparseReduction:
    """How sparse gradients are reduced.

    Attributes:
        op: Average or Sum.
        process_set: the ranks that take part.
        choose: choose between gathering and the dense way in every step.
        device: where, "" for TensorFlow's choice.
        layout: what the ranks must have cut alike, or 0.
        prescale: factor before the reduction.
        postscale: factor after it.
    """

    op: int
    process_set: Any
    choose: bool
    device: str
    layout: int
    prescale: float
    postscale: float

    def __post_init__(self) -> None:
        if self.op not in (reduce_ops.Average, reduce_ops.Sum):
            raise NotImplementedError(
                "tf.IndexedSlices can be reduced with Average and Sum, not with "
                f"{reduce_ops.name_of(self.op)}; use sparse_as_dense=True"
            )

    def reduce(
        self, gradients: Sequence[Any], names: Sequence[str], compressors: Sequence[Any], name: str
    ) -> list[Any]:
        """Returns the reduced gradients, as tf.IndexedSlices.

        Args:
            gradients: tf.IndexedSlices.
            names: one per gradient, for its own collectives.
            compressors: one per gradient; those that are `for_sparse` see the values.
            name: of the collective in which the ranks agree.
        """
        with device(self.device):
            own = [_deduplicated(gradient, self.prescale) for gradient in gradients]
            # The first number counts the ranks that take part, which Average divides by.
            counts = [tf.constant(1, tf.int64)]
            counts += [tf.size(g.indices, out_type=tf.int64) for g in own]
            [agreed] = allreduce.bucket_allreduce(
                [tf.stack(counts)],
                name=name,
                op=reduce_ops.Sum,
                layout_hash=self.layout,
                process_set=self.process_set,
            )
            # Ranks that do not agree on the layout must not go on to the next collective.
            with tf.control_dependencies([agreed]):
                return [
                    self._reduce_one(gradient, agreed[0], agreed[i + 1], own_name, compressor)
                    for i, (gradient, own_name, compressor) in enumerate(
                        zip(own, names, compressors, strict=True)
                    )
                ]

    def _reduce_one(
        self, gradient: Any, participants: Any, rows: Any, name: str, compressor: Any
    ) -> Any:
        if self.choose and gradient.dense_shape is not None:
            table = tf.cast(gradient.dense_shape[0], tf.int64)
            values, indices = tf.cond(
                _gathering_is_dearer(gradient, rows, table),
                lambda: self._densely(gradient, table, name, compressor),
                lambda: self._gathered(gradient, name, compressor),
            )
        else:
            values, indices = self._gathered(gradient, name, compressor)
        if self.op == reduce_ops.Average:
            divisor = tf.cast(participants, values.dtype)
            values = values / divisor if values.dtype.is_floating else values // divisor
        if self.postscale != 1.0:
            values = times(values, self.postscale)
        values = tf.ensure_shape(values, [None, *gradient.values.shape[1:]])
        return tf.IndexedSlices(values, indices, gradient.dense_shape)

    def _gathered(self, gradient: Any, name: str, compressor: Any) -> tuple[Any, Any]:
        wire, context = _compress(gradient.values, compressor)
        gather = allgather.allgather
        options: Any = {"process_set": self.process_set, "ignore_name_scope": True}
        values = gather(wire, name=f"{name}.values", **options)
        indices = gather(gradient.indices, name=f"{name}.indices", **options)
        return _decompress(values, context, compressor), indices

    def _densely(self, gradient: Any, table: Any, name: str, compressor: Any) -> tuple[Any, Any]:
        dense = tf.math.unsorted_segment_sum(gradient.values, gradient.indices, table)
        wire, context = _compress(dense, compressor)
        [total] = allreduce.bucket_allreduce(
            [wire], name=f"{name}.dense", op=reduce_ops.Sum, process_set=self.process_set
        )
        indices = tf.range(tf.cast(table, gradient.indices.dtype))
        return _decompress(total, context, compressor), indices


def _deduplicated(gradient: Any, prescale: float) -> Any:
    distinct, position = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, position, tf.size(distinct))
    if prescale != 1.0:
        values = times(values, prescale)
    return tf.IndexedSlices(values, distinct, gradient.dense_shape)


def _gathering_is_dearer(gradient: Any, rows: Any, table: Any) -> Any:
    """Compares bytes received: all ranks' rows and indices, or a ring's twice the table."""
    elements = tf.reduce_prod(tf.shape(gradient.values, out_type=tf.int64)[1:])
    row_bytes = elements * gradient.values.dtype.size
    return rows * (row_bytes + gradient.indices.dtype.size) > 2 * table * row_bytes


def _compress(values: Any, compressor: Any) -> tuple[Any, Any]:
    if not getattr(compressor, "for_sparse", False):
        return values, None
    wire, context = compressor.compress(values)
    return wire, context


def _decompress(values: Any, context: Any, compressor: Any) -> Any:
    if not getattr(compressor, "for_sparse", False):
        return values
    return compressor.decompress(values, context)
