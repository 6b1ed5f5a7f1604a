"""Reduces the gradients of one step, bucket by bucket.

A rank without gradients for a bucket still reduces it, with one element. If other ranks have
gradients there, the layout hashes differ: all ranks get an error instead of waiting.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfring.collectives import buckets, sparse
from tfring.collectives.compression import Compression
from tfring.ops import arguments, builders, library, reduce_ops, xla
from tfring.ops.gradients import as_complex, as_pair
from tfring.runtime import process_sets, topology
from tfring.training import first_steps, gate, overlap, weights
from tfring.training.local_variables import variable_key
from tfring.training.options import ReduceOptions
from tfring.training.shards import EqualShards
from tfring.training.value_names import describe_layout, name_gradients, variable_name

_log = logging.getLogger("tfring")


@dataclasses.dataclass(frozen=True)
class Sent:
    """One gradient to reduce."""

    position: int  # index in the list of gradients
    tensor: Any  # the compressed tensor
    compressor: Any
    context: Any  # of the compressor
    is_complex: bool

    def restore(self, reduced: Any) -> Any:
        """Returns the reduced gradient in its first dtype."""
        result = self.compressor.decompress(reduced, self.context)
        return as_complex(result) if self.is_complex else result


@dataclasses.dataclass(frozen=True)
class Part:
    """The gradients of a bucket that one collective reduces: all have one dtype when sent."""

    name: str
    tensors: list[Any]
    sent: list[Sent]  # empty if this rank has no gradient in the bucket
    scattered: bool = False  # each rank gets its shard of the result

    def put(self, reduced: Sequence[Any], results: list[Any]) -> None:
        """Puts the reduced gradients at their positions in `results`."""
        for each, tensor in zip(self.sent, reduced, strict=False):
            results[each.position] = each.restore(tensor)


class BucketReduction:
    """Reduces one list of gradients.

    Args:
        options: how to reduce them.
        name: the collectives are called `name`.0, `name`.1 and so on.
        variables: one per gradient. Values that travel with the gradients stand at the end, as
            tf.TensorSpec.
        loss_scaled: the gradients may contain inf and nan, which the optimizer looks for.
        shards: `reduce` returns this rank's shards, but the whole of what is no gradient.
    """

    def __init__(
        self,
        options: ReduceOptions,
        name: str,
        variables: Sequence[Any],
        loss_scaled: bool,
        shards: EqualShards | None = None,
    ) -> None:
        self._options = options
        self._shards = shards
        self._name = name
        self._variables = variables
        self._loss_scaled = loss_scaled

    def reduce(self, gradients: Sequence[Any]) -> list[Any]:
        """Returns the reduced gradients, None where there was none."""
        given = [self._as_dense(gradient) for gradient in gradients]
        cut = buckets.cut_buckets(
            tuple(_spec_of(variable) for variable in self._variables),
            self._groups_by_position(),
            buckets.FIRST_BUCKET_BYTES,
            buckets.BUCKET_BYTES,
        )
        layout = self._layout(cut, given)
        how: dict[str, Any] = {
            "op": self._options.op,
            "prescale": 1.0 / self._options.gradient_predivide_factor,
            "postscale": self._options.gradient_predivide_factor,
            "process_set_id": process_sets.checked_id(self._options.members),
            "layout_hash": layout,
            "group": True,
        }
        results: list[Any] = [None] * len(given)
        if xla.compiling():
            self._reduce_compiled(cut, given, how, results)
            return self._cut_whole(given, results)
        for bucket in cut:
            # No work of the step is left while the last bucket is reduced, so its op need not wait
            # for the results. Behind a gate it must have succeeded.
            early = bucket is cut[-1] and not gate.wanted()
            agreed: list[Any] = []  # results of the collective that compared the layouts
            with arguments.on_device(self._options.device_dense):
                for part in self._parts(bucket, given):
                    # Later parts wait for the first: it fails if the ranks' layouts differ.
                    with tf.control_dependencies(agreed):
                        reduced = self._collective(part, early, how)
                    agreed = agreed or reduced[:1]
                    part.put(reduced, results)
            slices = [p for p in bucket.positions if _kind(given[p]) == "S"]
            if slices:
                name = f"{self._name}.{bucket.index}"
                with tf.control_dependencies(agreed):
                    self._reduce_slices(
                        f"{name}.sparse" if agreed else name, slices, given, results, layout
                    )
        return self._cut_whole(given, results)

    def _collective(self, part: Part, early: bool, how: dict[str, Any]) -> list[Any]:
        if not part.scattered:
            return builders.allreduce_op(part.tensors, name=part.name, early=early, **how)
        assert self._shards is not None
        flat = [self._shards.flat(tensor) for tensor in part.tensors]
        how = {key: value for key, value in how.items() if key != "layout_hash"}
        return builders.reducescatter_op(flat, name=part.name, **how)

    def _cut_whole(self, gradients: list[Any], results: list[Any]) -> list[Any]:
        """Returns the results; if this rank wants its shards only, also of what came whole."""
        if self._shards is None:
            return results
        cut = list(results)
        for position, (result, variable) in enumerate(zip(results, self._variables, strict=True)):
            if result is None or isinstance(variable, tf.TensorSpec):
                continue
            if isinstance(result, tf.IndexedSlices):
                shape = tf.TensorShape(variable.shape)
                cut[position] = self._shards.part_of_slices(result, shape)
            elif _kind(gradients[position]) == "S" or not self._scatters(position):
                cut[position] = self._shards.part(tf.ensure_shape(result, variable.shape))
        return cut

    def _scatters(self, position: int) -> bool:
        """Returns whether a dense gradient at this position is reduced by reducescatter.

        What is compressed by the user's own class, or not summed element by element, is reduced
        whole, and so is everything under XLA, which knows no reducescatter.
        """
        variable = self._variables[position]
        if self._shards is None or isinstance(variable, tf.TensorSpec) or xla.compiling():
            return False
        known = (Compression.none, Compression.fp16, Compression.bf16)
        plain = self._options.op in (reduce_ops.Average, reduce_ops.Sum)
        real = not tf.as_dtype(variable.dtype).is_complex
        return plain and real and self._compressor(position) in known

    def _reduce_compiled(
        self,
        cut: Sequence[buckets.Bucket],
        gradients: list[Any],
        how: dict[str, Any],
        results: list[Any],
    ) -> None:
        """Starts each collective before it waits for the first, for jit_compile=True.

        XLA runs the collectives of a function in the order in which they were traced. On a GPU,
        started collectives overlap with each other and with the backward pass. Gradients are dense
        here.
        """
        traced = overlap.begin()
        with arguments.on_device(self._options.device_dense):
            parts = [part for bucket in cut for part in self._parts(bucket, gradients)]
            waits = [builders.start_allreduce(p.tensors, name=p.name, **how) for p in parts]
            for part, wait in zip(parts, waits, strict=True):
                part.put(wait(), results)
        overlap.pin(traced)

    def _parts(self, bucket: buckets.Bucket, gradients: list[Any]) -> Iterator[Part]:
        """Yields one part for each collective of a bucket's dense gradients.

        A compressor may choose another dtype for each gradient; each dtype needs one collective.
        """
        name = f"{self._name}.{bucket.index}"
        dense = [p for p in bucket.positions if _kind(gradients[p]) == "D"]
        if dense:
            scattered = [p for p in dense if self._scatters(p)]
            whole = [p for p in dense if p not in scattered]
            if scattered:
                yield from self._parts_of(scattered, gradients, name, scattered=True)
            if whole:
                name = f"{name}.whole" if scattered else name
                yield from self._parts_of(whole, gradients, name)
        elif all(_kind(gradients[p]) == "N" for p in bucket.positions):
            yield Part(name, [_checked(tf.zeros([1], bucket.dtype), name)], [])

    def _parts_of(
        self, positions: list[int], gradients: list[Any], name: str, *, scattered: bool = False
    ) -> Iterator[Part]:
        """Yields one part for each dtype."""
        sent = [self._send(gradients[p], p) for p in positions]
        for part_name, places in arguments.by_dtype([each.tensor for each in sent], name):
            part = [sent[i] for i in places]
            variables = [self._variables[each.position] for each in part]
            name_gradients(part_name, variables, loss_scaled=self._loss_scaled)
            tensors = [_checked(each.tensor, part_name) for each in part]
            yield Part(part_name, tensors, part, scattered)

    def _send(self, gradient: Any, position: int) -> Sent:
        compressor = self._compressor(position)
        is_complex = gradient.dtype.is_complex
        if is_complex and self._options.op not in (reduce_ops.Average, reduce_ops.Sum):
            raise TypeError(
                f"the gradient of {variable_name(self._variables[position])!r} is complex, which "
                f"op={reduce_ops.name_of(self._options.op)} does not support. Use op=Average or "
                "op=Sum"
            )
        # A complex gradient is sent as pairs of real numbers.
        tensor, context = compressor.compress(as_pair(gradient) if is_complex else gradient)
        return Sent(position, tensor, compressor, context, is_complex)

    def _reduce_slices(
        self,
        name: str,
        positions: list[int],
        gradients: list[Any],
        results: list[Any],
        layout: int,
    ) -> None:
        sparse.check_op(self._options.op, name)
        reduction = sparse.SparseReduction(
            op=self._options.op,
            process_set_id=process_sets.checked_id(self._options.members),
            choose=self._options.sparse_as_dense == "auto",
            device=self._options.device_sparse,
            layout=layout,
            prescale=1.0 / self._options.gradient_predivide_factor,
            postscale=self._options.gradient_predivide_factor,
        )
        reduced = reduction.reduce(
            [gradients[p] for p in positions], name, [self._compressor(p) for p in positions]
        )
        for p, gradient in zip(positions, reduced, strict=True):
            results[p] = gradient

    def _as_dense(self, gradient: Any) -> Any:
        if not isinstance(gradient, tf.IndexedSlices):
            return gradient
        choice = self._options.sparse_as_dense
        if choice is not True and not xla.compiling():
            return gradient
        if choice is False and topology.rank() == 0:
            _say_dense()
        with arguments.on_device(self._options.device_dense):
            return tf.convert_to_tensor(gradient)

    def _layout(self, cut: Sequence[buckets.Bucket], gradients: list[Any]) -> int:
        """Returns the layout hash, and tells the runtime what it stands for."""
        # "auto" runs other collectives for sparse gradients, so ranks must agree on it.
        sparse_kind = "A" if self._options.sparse_as_dense == "auto" else "S"
        kinds = [_kind(gradient).replace("S", sparse_kind) for gradient in gradients]
        specs = [_text_of(variable) for variable in self._variables]
        options = (self._options.op, self._options.gradient_predivide_factor)
        found = buckets.layout_hash(cut, kinds, f"{specs}{options}")
        own = [v for v in self._variables if not isinstance(v, tf.TensorSpec)]
        describe_layout(found, kinds[: len(own)], own, specs[: len(own)])
        return found

    def _groups_by_position(self) -> buckets.Groups:
        groups = self._options.groups
        if groups is None or isinstance(groups, int):
            return groups
        position = {variable_key(v): i for i, v in enumerate(self._variables)}
        found = tuple(
            tuple(position[variable_key(v)] for v in group if variable_key(v) in position)
            for group in groups
        )
        if not any(found):
            raise ValueError(
                "no variable in groups= has a gradient to reduce. Give lists of the model's own "
                "trainable variables"
            )
        return tuple(group for group in found if group)

    def _compressor(self, position: int) -> Any:
        variable, compression = self._variables[position], self._options.compression
        if variable is weights.WIRE:
            return Compression.none
        if variable is first_steps.WIRE:
            known = compression in (Compression.fp16, Compression.bf16)
            return compression if known else Compression.none
        choose = getattr(compression, "for_variable", None)
        return compression if choose is None else choose(variable)


def _checked(tensor: Any, name: str) -> Any:
    return arguments.checked_tensor(tensor, name, library.REDUCIBLE, "allreduce")


def _kind(gradient: Any) -> str:
    if gradient is None:
        return "N"
    if isinstance(gradient, tf.IndexedSlices):
        return "S"
    if isinstance(gradient, tf.Tensor):
        return "D"
    raise NotImplementedError(
        f"cannot reduce a gradient of type {type(gradient).__name__}. Use a tf.Tensor or "
        "tf.IndexedSlices"
    )


def _text_of(variable: Any) -> str:
    """Returns dtype and shape. Some ranks may not know the shape of a tensor."""
    shape = "" if isinstance(variable, tf.Tensor) else f", shape {variable.shape}"
    return f"({tf.as_dtype(variable.dtype).name}{shape})"


def _spec_of(variable: Any) -> buckets.TensorSpec:
    dtype = tf.as_dtype(variable.dtype)
    elements = 1
    for dim in tf.TensorShape(variable.shape).as_list() if variable.shape is not None else []:
        elements *= dim if dim is not None else 1
    return buckets.TensorSpec(dtype.real_dtype.name, elements * dtype.size)


@functools.cache
def _say_dense() -> None:
    _log.warning(
        "jit_compile=True: gradients of embeddings (tf.IndexedSlices) are reduced as dense "
        "tensors with all rows of the table. Set sparse_as_dense=True to hide this warning, or "
        "jit_compile=False to reduce only the rows that a step uses"
    )
