"""Reduces one step's gradients: the part that the tape and the Keras optimizer share."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfring import buckets, collectives, process_sets, reduce_ops, world
from tfring.compression import Compression

_REDUCED_MARK = "_tfring_reduced"


@dataclasses.dataclass(frozen=True)
class ReduceOptions:
    """What the user asked for when wrapping; checked once, constant afterwards."""

    op: int = reduce_ops.Average
    compression: Any = Compression.none
    sparse_as_dense: bool = False
    gradient_predivide_factor: float = 1.0
    groups: Any = None
    process_set: Any = None
    device_dense: str = ""
    device_sparse: str = ""

    def __post_init__(self) -> None:
        name = reduce_ops.name_of(self.op)
        if self.op == reduce_ops.Adasum:
            raise NotImplementedError("op=Adasum is not available in this version of tfring")
        if self.gradient_predivide_factor <= 0:
            raise ValueError(
                f"gradient_predivide_factor must be positive, not {self.gradient_predivide_factor}"
            )
        if self.gradient_predivide_factor != 1.0 and self.op != reduce_ops.Average:
            raise ValueError(f"gradient_predivide_factor needs op=Average, not {name}")
        if self.process_set is not None:
            process_sets.checked_id(self.process_set)
        if isinstance(self.groups, bool) or (isinstance(self.groups, int) and self.groups < 1):
            raise ValueError(f"groups must be a positive number or a list, not {self.groups!r}")


def resolve_groups(num_groups: int, groups: Any) -> Any:
    """Joins Horovod's two ways of asking for groups into one; ValueError for both at once."""
    if num_groups and groups is not None:
        raise ValueError("give num_groups or groups, not both")
    if num_groups < 0:
        raise ValueError(f"num_groups must not be negative, not {num_groups}")
    return num_groups or groups or None


def is_reduced(gradient: Any) -> bool:
    """Tells whether this very object came out of a reduction."""
    return bool(getattr(gradient, _REDUCED_MARK, False))


def variable_key(variable: Any) -> Any:
    """Returns what identifies a variable within this process; never sent anywhere."""
    value = getattr(variable, "value", None)
    inner = variable if callable(value) or value is None else value
    return getattr(inner, "_unique_id", None) or id(inner)


class GradientReducer:
    """Cuts gradients into buckets and reduces them over the ranks of a process set.

    Usable in eager mode and while a function is traced; holds no state of a step, so a retrace
    builds the same operations under the same names. Lives as long as the wrapper that owns it.
    """

    built = 0  # how many reductions were built in this process; the callbacks look at it

    def __init__(self, options: ReduceOptions) -> None:
        self._options = options

    def exact(self, op: int) -> GradientReducer:
        """Returns a reducer over the same ranks that does nothing but `op` to the values."""
        return GradientReducer(ReduceOptions(op=op, process_set=self._options.process_set))

    def reduce(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        *,
        name: str,
        unscale: Any = None,
        postscale: float = 1.0,
    ) -> list[Any]:
        """Returns the reduced gradients, None where there was none.

        Args:
            gradients: tf.Tensor, tf.IndexedSlices or None, one per variable.
            variables: what the gradients belong to; only dtype, shape and identity are used.
            name: the collectives are called `name`.0, `name`.1 and so on.
            unscale: the loss scale that the gradients carry; a compression sees them without it.
            postscale: factor for the result.

        Raises:
            tf.errors.FailedPreconditionError: tfring is not initialized; or, when the operation
                runs, ranks disagree about which gradients exist or about their shapes.
        """
        if not world.is_initialized():
            raise tf.errors.FailedPreconditionError(
                None, None, f"gradients of {name} are to be reduced: call tfring.init() first"
            )
        GradientReducer.built += 1
        call = _Call(self._options, name, unscale, postscale)
        dense = [call.as_dense(gradient) for gradient in gradients]
        kinds = [_kind(gradient) for gradient in dense]
        specs = tuple(_spec_of(variable) for variable in variables)
        cut = buckets.cut_buckets(
            specs,
            self._groups_by_position(variables),
            buckets.FIRST_BUCKET_BYTES,
            buckets.BUCKET_BYTES,
        )
        layout = buckets.layout_hash(cut, kinds)
        results: list[Any] = [None] * len(dense)
        for bucket in cut:
            call.reduce_bucket(bucket, dense, results, layout)
        for result in results:
            if result is not None:
                setattr(result, _REDUCED_MARK, True)
        return results

    def _groups_by_position(self, variables: Sequence[Any]) -> buckets.Groups:
        groups = self._options.groups
        if groups is None or isinstance(groups, int):
            return groups
        position = {variable_key(v): i for i, v in enumerate(variables)}
        found = tuple(
            tuple(position[variable_key(v)] for v in group if variable_key(v) in position)
            for group in groups
        )
        if not any(found):
            raise ValueError(
                "none of the variables in groups= is among the variables whose gradients are "
                "reduced; give lists of the model's own trainable variables"
            )
        return tuple(group for group in found if group)


@dataclasses.dataclass(frozen=True)
class _Call:
    """One call of GradientReducer.reduce."""

    options: ReduceOptions
    name: str
    unscale: Any
    postscale: float

    def as_dense(self, gradient: Any) -> Any:
        if isinstance(gradient, tf.IndexedSlices) and self.options.sparse_as_dense:
            with _device(self.options.device_dense):
                return tf.convert_to_tensor(gradient)
        return gradient

    def reduce_bucket(
        self, bucket: buckets.Bucket, gradients: list[Any], results: list[Any], layout: int
    ) -> None:
        """Reduces what exists of one bucket into `results`.

        A bucket without a dense gradient still meets the other ranks, with one element: they may
        have one, and must be told instead of waiting.
        """
        name = f"{self.name}.{bucket.index}"
        dense = [p for p in bucket.positions if _kind(gradients[p]) == "D"]
        sparse = [p for p in bucket.positions if _kind(gradients[p]) == "S"]
        with _device(self.options.device_dense):
            met = self._reduce_dense(name, bucket, dense, gradients, results, layout)
        # The allgather carries no layout hash: it goes only where the bucket has agreed on it.
        with _device(self.options.device_sparse), tf.control_dependencies([met]):
            for p in sparse:
                results[p] = self._reduce_sparse(f"{name}.sparse.{p}", gradients[p])

    def _reduce_dense(
        self,
        name: str,
        bucket: buckets.Bucket,
        positions: list[int],
        gradients: list[Any],
        results: list[Any],
        layout: int,
    ) -> Any:
        compress = self.options.compression.compress
        if not positions:
            token, _ = compress(tf.zeros([1], bucket.dtype))
            return self._allreduce([token], name, layout)[0]
        sent = [compress(self._unscaled(gradients[p])) for p in positions]
        wires, contexts = zip(*sent, strict=True)
        parts: dict[Any, list[int]] = {}
        for i, wire in enumerate(wires):
            parts.setdefault(wire.dtype, []).append(i)
        met: list[Any] = []
        for number, part in enumerate(parts.values()):
            # Later parts wait for the first, which is where ranks that disagree find out.
            with tf.control_dependencies(met):
                part_name = f"{name}.{number}" if number else name
                reduced = self._allreduce([wires[i] for i in part], part_name, layout)
            met = met or [reduced[0]]
            for i, tensor in zip(part, reduced, strict=True):
                tensor = self.options.compression.decompress(tensor, contexts[i])
                results[positions[i]] = self._rescaled(tensor)
        return met[0]

    def _allreduce(self, tensors: list[Any], name: str, layout: int) -> list[Any]:
        factor = self.options.gradient_predivide_factor
        return collectives.bucket_allreduce(
            tensors,
            name=name,
            op=self.options.op,
            prescale_factor=1.0 / factor,
            postscale_factor=factor * self.postscale,
            layout_hash=layout,
            process_set=self.options.process_set or process_sets.global_process_set,
        )

    def _reduce_sparse(self, name: str, gradient: Any) -> Any:
        reduced = collectives.allreduce(
            gradient,
            op=self.options.op,
            name=name,
            process_set=self.options.process_set or process_sets.global_process_set,
            ignore_name_scope=True,
        )
        if self.postscale == 1.0:
            return reduced
        values = reduced.values * tf.cast(self.postscale, reduced.values.dtype)
        return tf.IndexedSlices(values, reduced.indices, reduced.dense_shape)

    def _unscaled(self, gradient: Any) -> Any:
        if self.unscale is None or self.options.compression is Compression.none:
            return gradient
        return gradient / tf.cast(self.unscale, gradient.dtype)

    def _rescaled(self, gradient: Any) -> Any:
        if self.unscale is None or self.options.compression is Compression.none:
            return gradient
        return gradient * tf.cast(self.unscale, gradient.dtype)


def _kind(gradient: Any) -> str:
    if gradient is None:
        return "N"
    if isinstance(gradient, tf.IndexedSlices):
        return "S"
    if isinstance(gradient, tf.Tensor):
        return "D"
    raise NotImplementedError(
        f"cannot reduce a gradient of type {type(gradient).__name__}; tf.Tensor and "
        "tf.IndexedSlices can be reduced"
    )


def _spec_of(variable: Any) -> buckets.TensorSpec:
    dtype = tf.as_dtype(variable.dtype)
    elements = 1
    for dim in tf.TensorShape(variable.shape).as_list() if variable.shape is not None else []:
        elements *= dim if dim is not None else 1
    return buckets.TensorSpec(dtype.name, elements * dtype.size)


@contextlib.contextmanager
def _device(name: str) -> Iterator[None]:
    if not name:
        yield
        return
    with tf.device(name):
        yield
