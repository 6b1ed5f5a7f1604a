"""allreduce: the sum, mean or another reduction of the ranks' tensors, on every rank.

Adasum counts what the tensors have in common once: of two it makes
(1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b, where a.b is the dot product of the whole tensors. So
orthogonal tensors are added and equal ones averaged; a tensor of zeros changes nothing. Any number
of ranks is combined along a balanced binary tree, neighbours first (Maleki et al., Scaling
Distributed Training with Adaptive Summation, https://arxiv.org/abs/2006.02924).
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfring.collectives import buckets, sparse
from tfring.collectives.compression import Compression
from tfring.ops import arguments, builders, library, names
from tfring.ops.reduce_ops import Average
from tfring.runtime.process_sets import ProcessSet, checked_id, global_process_set

_largest = [0]  # elements of the largest tensor that the program has reduced by calls of its own


def largest() -> int:
    """Returns how many elements the largest tensor had that the program has reduced itself.

    That is, by allreduce or grouped_allreduce; a tensor of unknown shape counts as larger than all.
    """
    return _largest[0]


@library.outside_autograph
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduces a tensor over all ranks.

    Differentiable; tfring.ops.gradients says which loss the gradient belongs to.

    Args:
        tensor: tensor, variable, array or number of any shape, which is the same on every rank:
            float16, bfloat16, float32, float64, int8, uint8, int32 or int64. Or tf.IndexedSlices,
            with Average and Sum only: values and indices of all ranks are gathered, and those of
            one index summed, so that every index of the result occurs once.
        average: deprecated, use op: True is Average, False is Sum.
        device_dense: device for the reduction of a dense tensor, "" for TensorFlow's choice.
        device_sparse: likewise for tf.IndexedSlices.
        compression: what is done to a dense tensor on the wire.
        op: Average (the default), Sum, Min, Max, Product or Adasum. Average is the sum divided by
            the number of ranks that took part (see join): a sum of integers wraps around as it does
            in NumPy. Adasum is for floating dtypes; tfring.collectives.allreduce describes it.
        prescale_factor: multiplies every rank's tensor before the reduction.
        postscale_factor: multiplies the result.
        name: the same on every rank; made up by default.
        process_set: the ranks that take part.
        ignore_name_scope: use `name` as it is, without the current name scope.

    Returns:
        A tensor of the same shape and dtype, or tf.IndexedSlices.

    Raises:
        ValueError: op and average contradict each other, op or the process set is unknown.
        TypeError: the dtype is not supported.
        NotImplementedError: tf.IndexedSlices with Adasum, Min, Max, Product or a factor.
        tf.errors.FailedPreconditionError: tfring is not initialized, or ranks disagree on dtype,
            shape, op or factors.
        tf.errors.UnavailableError: a rank was lost.
    """
    op = arguments.checked_op(op, average)
    options = _Options(op, compression, prescale_factor, postscale_factor, checked_id(process_set))
    arguments.require_init("allreduce")
    options.check([tensor], name)
    _note([tensor])
    if isinstance(tensor, tf.IndexedSlices):
        full_name = names.collective_name("allreduce", name, ignore_name_scope, process_set)
        return options.reduce_sparse([tensor], full_name, device_sparse)[0]
    with arguments.on_device(device_dense):
        wires = options.compress([tensor], name)
        full_name = names.collective_name("allreduce", name, ignore_name_scope, process_set)
        return options.reduce_dense(wires, full_name, group=False)[0]


@library.outside_autograph
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Reduces a list of tensors over all ranks, those of one dtype as one collective.

    The parameters are those of allreduce, for all tensors, whose shapes and dtypes may differ;
    tf.IndexedSlices may be among them. `name` is the name of the group.

    Returns:
        The results in the order of `tensors`.

    Raises:
        Exception: what allreduce raises.
    """
    op = arguments.checked_op(op, average)
    options = _Options(op, compression, prescale_factor, postscale_factor, checked_id(process_set))
    arguments.require_init("grouped_allreduce")
    if not tensors:
        return []
    options.check(tensors, name)
    _note(tensors)
    sparse_at = [i for i, t in enumerate(tensors) if isinstance(t, tf.IndexedSlices)]
    dense_at = [i for i in range(len(tensors)) if i not in sparse_at]
    results: dict[int, Any] = {}
    with arguments.on_device(device_dense):
        wires = options.compress([tensors[i] for i in dense_at], name)
        full_name = names.collective_name("grouped_allreduce", name, ignore_name_scope, process_set)
        reduced = options.reduce_dense(wires, full_name, group=True, sparse_at=sparse_at)
    results.update(zip(dense_at, reduced, strict=True))
    if sparse_at:
        # The first collective has the plain name on every rank, whatever its list.
        sparse_name = f"{full_name}.sparse" if dense_at else full_name
        with tf.control_dependencies(reduced[:1]):
            slices = [tensors[i] for i in sparse_at]
            reduced = options.reduce_sparse(slices, sparse_name, device_sparse)
        results.update(zip(sparse_at, reduced, strict=True))
    return [results[i] for i in range(len(tensors))]


@library.outside_autograph
def bucket_allreduce(
    tensors: Sequence[Any],
    *,
    name: str,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    layout_hash: int = 0,
    process_set: ProcessSet = global_process_set,
    early: bool = False,
) -> list[Any]:
    """Reduces one bucket of gradients as one op; for the tape and the optimizer.

    Args:
        tensors: tensors of one dtype.
        name: the whole name; no scope is added.
        op: Average, Sum, Min, Max, Product or Adasum.
        prescale_factor: multiplies before the reduction.
        postscale_factor: multiplies the result.
        layout_hash: of the way in which all gradients were cut into buckets; if the ranks' hashes
            differ, all get FailedPreconditionError.
        process_set: the ranks that take part.
        early: on a GPU the op is done when the GPU has its work, not when it has the results.

    Returns:
        The reduced tensors.

    Raises:
        Exception: what allreduce raises.
    """
    return builders.allreduce_op(
        [arguments.checked_tensor(t, name, library.REDUCIBLE, "allreduce") for t in tensors],
        name=name,
        op=arguments.checked_op(op),
        prescale=prescale_factor,
        postscale=postscale_factor,
        process_set_id=checked_id(process_set),
        layout_hash=layout_hash,
        group=True,
        early=early,
    )


@library.outside_autograph
def start_bucket_allreduce(
    tensors: Sequence[Any],
    *,
    name: str,
    op: int,
    prescale_factor: float,
    postscale_factor: float,
    layout_hash: int,
    process_set: ProcessSet,
) -> Callable[[], list[Any]]:
    """As bucket_allreduce, in a function with jit_compile=True, in two parts.

    XLA runs the collectives of a function in the order in which they were traced. On a GPU those
    that are begun before the first is waited for overlap with each other and with the work that
    their tensors are the results of.

    Args:
        tensors: as for bucket_allreduce.
        name: likewise.
        op: likewise.
        prescale_factor: likewise.
        postscale_factor: likewise.
        layout_hash: likewise.
        process_set: likewise.

    Returns:
        A function, to be called once, that waits and returns the reduced tensors.

    Raises:
        Exception: what allreduce raises.
    """
    return builders.start_allreduce(
        [arguments.checked_tensor(t, name, library.REDUCIBLE, "allreduce") for t in tensors],
        name=name,
        op=arguments.checked_op(op),
        prescale=prescale_factor,
        postscale=postscale_factor,
        process_set_id=checked_id(process_set),
        layout_hash=layout_hash,
        group=True,
    )


@dataclasses.dataclass(frozen=True)
class _Options:
    """What one call of allreduce or grouped_allreduce does to its tensors."""

    op: int
    compression: Any
    prescale: float
    postscale: float
    process_set_id: int

    def check(self, tensors: Sequence[Any], name: str | None) -> None:
        """Raises what cannot be done with those of the tensors that are tf.IndexedSlices."""
        for tensor in tensors:
            sparse.check_allreduce(tensor, name, self.op, self.prescale, self.postscale)

    def compress(self, tensors: Sequence[Any], name: str | None) -> list[tuple[Any, Any]]:
        """Returns what is sent for each dense tensor, and the compression's context."""
        return arguments.compress(tensors, name, self.compression, "allreduce", self.op)

    def reduce_dense(
        self,
        wires: list[tuple[Any, Any]],
        name: str,
        *,
        group: bool,
        sparse_at: Sequence[int] = (),
    ) -> list[Any]:
        """Builds one op per dtype of what `compress` returned.

        The layout hash of the first op covers the later ops and the positions of the
        tf.IndexedSlices: ranks whose lists differ get an error there, before one of them waits in
        a collective that the others do not make.
        """
        results: list[Any] = [None] * len(wires)
        parts = arguments.by_dtype([wire for wire, _ in wires], name)
        later = [part_name.removeprefix(name) for part_name, _ in parts[1:]]
        layout = buckets.text_hash(f"{later}{list(sparse_at)}") if later or sparse_at else 0
        first: list[Any] = []
        for op_name, positions in parts:
            with tf.control_dependencies(first):
                reduced = builders.allreduce_op(
                    [wires[i][0] for i in positions],
                    name=op_name,
                    op=self.op,
                    prescale=self.prescale,
                    postscale=self.postscale,
                    process_set_id=self.process_set_id,
                    layout_hash=layout,
                    group=group,
                )
            first = first or reduced[:1]
            for i, wire in zip(positions, reduced, strict=True):
                results[i] = self.compression.decompress(wire, wires[i][1])
        return results

    def reduce_sparse(self, slices: Sequence[Any], name: str, device: str) -> list[Any]:
        """Reduces tf.IndexedSlices."""
        reduction = sparse.SparseReduction(self.op, self.process_set_id, device=device)
        return reduction.reduce(slices, name)


def _note(tensors: Sequence[Any]) -> None:
    for tensor in tensors:
        shape = getattr(tensor, "shape", None)
        elements = tf.TensorShape(shape).num_elements() if shape is not None else 0
        _largest[0] = max(_largest[0], sys.maxsize if elements is None else elements)
