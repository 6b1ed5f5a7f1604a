"""The reduction of tf.IndexedSlices, such as the gradients of embedding tables.

Each rank first sums its rows of one index. Then either all rows are gathered, or each rank makes
its tensor dense and that is reduced. Gathering moves the rows of all ranks. The dense way moves
about two times the table, whatever the rows. With `choose`, all ranks take the way that moves fewer
bytes, in every step anew and without a retrace.

Rows of one index from several ranks are summed, too, so every index occurs once. Otherwise an
optimizer that is not linear in the gradient (Adam squares it, clipnorm takes its norm) would treat
the parts of one row as different rows, and the result would depend on the number of ranks.

Before any row is sent, the ranks tell each other how many rows they have, under the plain name of
the call. If a rank makes another collective of this name, such as the allreduce of a dense tensor,
all ranks get an error. There are two ways:

- For gradients, which have a layout hash: an allreduce of the counts that carries a hash of the
  layout and the options. It also counts the ranks that take part, because ranks that have joined
  send nothing.
- For a call of allreduce, which has no hash: an allgather of the counts, whose number of rows is
  the number of ranks that take part. A second allreduce beside the gathering compares the
  operation, so an error names the operations. Without `choose` all ranks gather whatever the
  operation is, so no rank waits in vain.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfring.collectives.compression import Compression
from tfring.ops import arguments, builders, library, reduce_ops
from tfring.ops.gradients import in_pairs
from tfring.ops.reduce_ops import Average, Sum


def check_op(op: int, name: str) -> None:
    """Raises NotImplementedError for an operation that tf.IndexedSlices do not support."""
    if op not in (Average, Sum):
        raise NotImplementedError(
            f"tensor {name}: tf.IndexedSlices can be reduced with Average and Sum, not with "
            f"{reduce_ops.name_of(op)}. Make it dense with tf.convert_to_tensor, or gradients "
            "with sparse_as_dense=True"
        )


def check_allreduce(
    tensor: Any, name: str | None, op: int, prescale: float, postscale: float
) -> None:
    """Checks tf.IndexedSlices that were given to allreduce.

    Raises:
        NotImplementedError: the operation, a factor, or a function with jit_compile=True.
        TypeError: the dtype.
    """
    label = name or arguments.UNNAMED
    library.refuse_xla(label, "allreduce of tf.IndexedSlices")
    check_op(op, label)
    if prescale != 1.0 or postscale != 1.0:
        raise NotImplementedError(
            f"tensor {label}: tf.IndexedSlices do not support scale factors. Make it dense with "
            "tf.convert_to_tensor"
        )
    arguments.checked_tensor(tensor.values, name, library.MOVABLE, "allgather")


@dataclasses.dataclass(frozen=True)
class SparseReduction:
    """How tf.IndexedSlices are reduced.

    Attributes:
        op: Average or Sum.
        process_set_id: the ranks that take part.
        choose: choose between gathering and the dense way in every step.
        device: TensorFlow device, "" for TensorFlow's choice.
        layout: a number that is equal on ranks that reduce the same list of tensors with the same
            options. 0 if there is none; then `choose` and factors are not allowed.
        prescale: factor before the reduction.
        postscale: factor after it.
    """

    op: int
    process_set_id: int
    choose: bool = False
    device: str = ""
    layout: int = 0
    prescale: float = 1.0
    postscale: float = 1.0

    def reduce(
        self, slices: Sequence[Any], name: str, compressors: Sequence[Any] | None = None
    ) -> list[Any]:
        """Returns the reduced slices; in each, every index occurs once.

        Args:
            slices: tf.IndexedSlices.
            name: of the first collective; those of the others begin with it.
            compressors: one for each of the slices; those that are `for_sparse` see the values.
        """
        library.refuse_xla(name, "allreduce of tf.IndexedSlices")
        with arguments.on_device(self.device):
            own = [with_distinct_rows(each) for each in slices]
            if self.prescale != 1.0:
                own = [times(each, self.prescale) for each in own]
            rows = tf.stack([tf.size(each.indices, out_type=tf.int64) for each in own])
            exchange = self._allreduce_counts if self.layout else self._allgather_counts
            participants, totals, agreed = exchange(rows, name)
            with tf.control_dependencies([totals]):
                reduced = [
                    self._reduce_one(
                        each, participants, totals[i], f"{name}.{i}", _sparse(compressors, i)
                    )
                    for i, each in enumerate(own)
                ]
            with tf.control_dependencies([agreed]):
                return [
                    tf.IndexedSlices(tf.identity(each.values), each.indices, each.dense_shape)
                    for each in reduced
                ]

    def _allreduce_counts(self, rows: Any, name: str) -> tuple[Any, Any, Any]:
        """Returns the number of ranks, all ranks' rows, and what results must wait for."""
        [counts] = builders.allreduce_op(
            [tf.concat([[tf.constant(1, tf.int64)], rows], 0)],
            name=name,
            op=Sum,
            process_set_id=self.process_set_id,
            layout_hash=self.layout,
        )
        return counts[0], counts[1:], counts

    def _allgather_counts(self, rows: Any, name: str) -> tuple[Any, Any, Any]:
        """As _allreduce_counts, without a layout hash and a choice."""
        assert not self.choose
        everybody = self._gather(tf.expand_dims(rows, 0), name)
        with tf.control_dependencies([everybody]):
            [agreed] = builders.allreduce_op(
                [tf.zeros([1])], name=f"{name}.op", op=self.op, process_set_id=self.process_set_id
            )
        return tf.shape(everybody)[0], tf.reduce_sum(everybody, axis=0), agreed

    def _reduce_one(
        self, slices: Any, participants: Any, rows: Any, name: str, compressor: Any
    ) -> Any:
        if self.choose and slices.dense_shape is not None:
            table = tf.cast(slices.dense_shape[0], tf.int64)
            values, indices = tf.cond(
                _gathering_is_dearer(slices, rows, table),
                lambda: self._densely(slices, table, name, compressor),
                lambda: self._gathered(slices, name, compressor),
            )
        else:
            values, indices = self._gathered(slices, name, compressor)
        if self.op == Average:
            count = tf.cast(participants, values.dtype)
            divide = tf.truncatediv if values.dtype.is_integer else tf.divide
            values = divide(values, count)
        if self.postscale != 1.0:
            values = times(values, self.postscale)
        values = tf.ensure_shape(values, [None, *slices.values.shape[1:]])
        return tf.IndexedSlices(values, indices, slices.dense_shape)

    def _gathered(self, slices: Any, name: str, compressor: Any) -> tuple[Any, Any]:
        wire, context = compressor.compress(slices.values)
        values = self._gather(wire, f"{name}.values")
        indices = self._gather(slices.indices, f"{name}.indices")
        values = compressor.decompress(values, context)
        gathered = tf.IndexedSlices(values, indices, slices.dense_shape)
        with tf.device("CPU:0"):  # sums in a fixed order, so all ranks get the same bits
            summed = with_distinct_rows(gathered)
        return summed.values, summed.indices

    def _densely(self, slices: Any, table: Any, name: str, compressor: Any) -> tuple[Any, Any]:
        dense = tf.math.unsorted_segment_sum(slices.values, slices.indices, table)
        wire, context = compressor.compress(dense)
        [total] = in_pairs(
            [wire],
            lambda tensors: builders.allreduce_op(
                [arguments.checked_tensor(tensors[0], name, library.REDUCIBLE, "allreduce")],
                name=f"{name}.dense",
                op=Sum,
                process_set_id=self.process_set_id,
            ),
        )
        indices = tf.range(tf.cast(table, slices.indices.dtype))
        return compressor.decompress(total, context), indices

    def _gather(self, tensor: Any, name: str) -> Any:
        [gathered] = builders.allgather_op([tensor], name=name, process_set_id=self.process_set_id)
        return gathered


def times(gradient: Any, factor: Any) -> Any:
    """Returns a gradient of any kind, or None, times a number or scalar tensor."""
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        values = times(gradient.values, factor)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    if gradient.dtype in (tf.float16, tf.bfloat16):  # the factor may exceed their range
        wide = tf.cast(gradient, tf.float32) * tf.cast(factor, tf.float32)
        return tf.cast(wide, gradient.dtype)
    if gradient.dtype.is_integer:
        wide = tf.cast(gradient, tf.float64) * tf.cast(factor, tf.float64)
        return tf.cast(wide, gradient.dtype)
    return gradient * tf.cast(factor, gradient.dtype)


def with_distinct_rows(slices: Any) -> Any:
    """Returns tf.IndexedSlices of the same dense value in which every index occurs once.

    Args:
        slices: tf.IndexedSlices; a tensor, or None, is returned as it is.
    """
    if not isinstance(slices, tf.IndexedSlices):
        return slices
    distinct, position = tf.unique(slices.indices)
    values = tf.math.unsorted_segment_sum(slices.values, position, tf.size(distinct))
    return tf.IndexedSlices(values, distinct, slices.dense_shape)


def _gathering_is_dearer(slices: Any, rows: Any, table: Any) -> Any:
    """Compares received bytes: all ranks' rows and indices, or twice the table for a ring."""
    elements = tf.reduce_prod(tf.shape(slices.values, out_type=tf.int64)[1:])
    row_bytes = elements * slices.values.dtype.size
    return rows * (row_bytes + slices.indices.dtype.size) > 2 * table * row_bytes


def _sparse(compressors: Sequence[Any] | None, i: int) -> Any:
    """Returns the compressor for the values of the i-th tf.IndexedSlices."""
    if compressors is None or not getattr(compressors[i], "for_sparse", False):
        return Compression.none
    return compressors[i]
