"""Reduces one step's gradients: the part that the tape and the optimizers share.

What happens to a gradient, in this order:

1. It is divided by the loss scale, if it has one: the ranks' scales may differ, for example if one
   rank alone has loaded its state; and hooks and compression must see its own magnitude.
2. The user's before_reduce gets it.
3. It is multiplied by this rank's weight (weights.py), if the ranks do not count alike.
4. tf.IndexedSlices become dense, if sparse_as_dense is True, and always under XLA.
5. The list of variables is cut into buckets (collectives/buckets.py).
6. The gradients of a bucket are compressed, reduced by one collective and decompressed. Complex
   ones are pairs of real numbers meanwhile.
7. It is divided by the mean weight of the ranks, which has travelled with the gradients.
8. The user's after_reduce gets it.
9. It is multiplied by the loss scale, if step 1 divided it.

An optimizer's own clipping comes after all that. Gradients of local variables (local_variables.py)
go through none of these steps; they are divided by the number of ranks, if the user wants that.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfring.collectives import allreduce, buckets, sparse
from tfring.collectives.compression import Compression
from tfring.ops import arguments, reduce_ops, topology_ops, xla
from tfring.ops.gradients import as_complex, as_pair
from tfring.runtime import process_sets, topology
from tfring.training import (
    averaged_gathers,
    double_reduction,
    first_steps,
    gate,
    overlap,
    unreduced,
    weights,
)
from tfring.training.local_variables import LocalVariables, variable_key
from tfring.training.options import ReduceOptions, call_hook
from tfring.training.reduction_record import reductions
from tfring.training.value_names import describe_layout, name_gradients, variable_name

_log = logging.getLogger("tfring")

# Puts results into a list, at the positions of their gradients.
_Finish = Callable[[list[Any]], Any]


class GradientReducer:
    """Cuts gradients into buckets and reduces them over the ranks of a process set.

    Usable in eager mode and while a function is traced. Keeps nothing from one step to the next, so
    a retrace builds the same operations under the same names. Belongs to one tape or optimizer.
    """

    def __init__(self, options: ReduceOptions) -> None:
        """Prepares a reducer; `local` has the variables whose gradients stay this rank's own."""
        self.options = options
        self.local = LocalVariables(
            options.local_layers,
            scale=options.scale_local_gradients,
            process_set=options.process_set,
        )
        unreduced.expect()

    def exact(self, op: int) -> GradientReducer:
        """Returns a reducer over the same ranks that applies `op` and no other option."""
        return GradientReducer(ReduceOptions(op=op, process_set=self.options.process_set))

    def reduce(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        *,
        name: str,
        unscale: Any = None,
        loss_scaled: bool = False,
        weight: weights.Weight | None = None,
    ) -> list[Any]:
        """Returns the reduced gradients, None where there was none.

        On a rank outside the process set the gradients stay its own, as in Horovod; the hooks are
        called with them all the same.

        Args:
            gradients: tf.Tensor, tf.IndexedSlices or None, one per variable.
            variables: what the gradients belong to; only dtype, shape and identity are used.
            name: the collectives are called `name`.0, `name`.1 and so on.
            unscale: the loss scale by which the gradients are multiplied; hooks and compression
                get them without it.
            loss_scaled: an optimizer looks for inf and nan in the result and lowers its loss scale;
                with an `unscale` that is no plain number that is known.
            weight: how much this rank counts; None for as much as each other rank. Local gradients
                are multiplied by it, too.

        Raises:
            tf.errors.FailedPreconditionError: tfring is not initialized; or, when the operation
                runs, ranks disagree about which gradients exist or about their shapes.
        """
        if not topology.is_initialized():
            raise tf.errors.FailedPreconditionError(
                None,
                None,
                f"The gradients of {name} cannot be reduced: tfring has not been initialized.\n"
                "Call init() first, at the beginning of the program.",
            )
        loss_scaled = loss_scaled or not isinstance(unscale, (int, float, type(None)))
        local = self.local.positions(variables)
        shared = [i for i in range(len(variables)) if i not in local]
        members = process_sets.checked_id(self.options.members)
        reductions.add((variables[i] for i in shared if gradients[i] is not None), members)
        reductions.add_local(variables[i] for i in local)
        results: list[Any] = list(gradients)
        call = _Reduction(self.options, name, [variables[i] for i in shared], loss_scaled)
        given = [gradients[i] for i in shared]
        weight = weight if self.options.included else None
        asked = None
        if self.options.included:
            asked = first_steps.ask(call.variables, name, self.options.members, self.options.op)
        reduced, answers = self._reduce_shared(call, given, unscale, weight, asked)
        if asked is not None:
            asked.look(given, reduced, answers)
        own = [sparse.with_distinct_rows(gradients[i]) for i in sorted(local)]
        kept = self.local.scaled(own if weight is None else weight.scaled_here(own))
        for i, gradient in zip([*shared, *sorted(local)], [*reduced, *kept], strict=True):
            results[i] = gradient
        return results

    def meet(self, name: str, why: str) -> None:
        """Meets the other ranks in the first collective of `reduce`, without gradients.

        Args:
            name: as for `reduce`.
            why: all ranks that come here say the same.

        Raises:
            tf.errors.FailedPreconditionError: a rank reduces gradients; it gets the same error.
        """
        if self.options.included:
            allreduce.bucket_allreduce(
                [tf.zeros([1])],
                name=f"{name}.0",
                op=self.options.op,
                layout_hash=buckets.text_hash(why),
                process_set=self.options.members,
            )

    def _reduce_shared(
        self,
        call: _Reduction,
        gradients: list[Any],
        unscale: Any,
        weight: weights.Weight | None,
        asked: first_steps.Asked | None,
    ) -> tuple[list[Any], Any]:
        options, answers = self.options, None
        included = options.included
        variables = list(call.variables)
        if included and options.op == reduce_ops.Average:
            averaged_gathers.warn(gradients, variables, options.members)
        divisor = self._divisor(variables, unscale, call.name)
        if divisor is not None:
            gradients = [_divided(gradient, divisor) for gradient in gradients]
        gradients = call_hook(options.before_reduce, gradients, variables)
        if included:
            gradients, answers = self._reduce_counted(call, gradients, weight, asked)
        else:
            gradients = [sparse.with_distinct_rows(gradient) for gradient in gradients]
            gradients = _while_outside(gradients, process_sets.checked_id(options.members))
        gradients = call_hook(options.after_reduce, gradients, variables)
        if divisor is not None:
            gradients = [sparse.times(gradient, divisor) for gradient in gradients]
        if included:
            for gradient in gradients:
                double_reduction.mark(gradient, options.members)
        return gradients, answers

    def _divisor(self, variables: Sequence[Any], unscale: Any, name: str) -> Any:
        """Returns what the gradients are divided by before they are reduced; None for nothing.

        A loss scale that is a plain number is the same on all ranks. float16 gradients may vanish
        without their scale: they are only brought to the smallest scale of all ranks.
        """
        options = self.options
        if unscale is None or options.depends_on_magnitude:
            return unscale
        if isinstance(unscale, (int, float)):
            return None
        narrow = any(tf.as_dtype(v.dtype) == tf.float16 for v in variables)
        if not narrow or not options.included:
            return unscale
        scale = tf.cast(unscale, tf.float32)
        [smallest] = self.exact(reduce_ops.Min).reduce([scale], [scale], name=f"{name}.scale")
        return scale / smallest

    def _reduce_counted(
        self,
        call: _Reduction,
        gradients: list[Any],
        weight: weights.Weight | None,
        asked: first_steps.Asked | None,
    ) -> tuple[list[Any], Any]:
        """Reduces gradients, and with them this rank's weight and what it asks of the others."""
        sent = list(gradients) if weight is None else weight.applied_to(gradients)
        more: list[tuple[Any, Any]] = []
        if weight is not None:
            more.append((weights.WIRE, weight.wire()))
        if asked is not None:
            more.append((first_steps.WIRE, asked.said))
        specs, values = [spec for spec, _ in more], [value for _, value in more]
        call = dataclasses.replace(call, variables=[*call.variables, *specs])
        reduced = gate.behind_all(self._reduce_buckets(call, [*sent, *values]))
        results, counted = reduced[: len(gradients)], reduced[len(gradients) :]
        answers = counted.pop() if asked is not None else None
        return (results if weight is None else weight.divide(results, counted[0])), answers

    def _reduce_buckets(self, call: _Reduction, gradients: list[Any]) -> list[Any]:
        gradients = [call.as_dense(gradient) for gradient in gradients]
        specs = tuple(_spec_of(variable) for variable in call.variables)
        cut = buckets.cut_buckets(
            specs,
            self._groups_by_position(call.variables),
            buckets.FIRST_BUCKET_BYTES,
            buckets.BUCKET_BYTES,
        )
        # "auto" runs other collectives for sparse gradients: ranks must agree on it, too.
        sparse_kind = "A" if self.options.sparse_as_dense == "auto" else "S"
        kinds = [_kind(gradient).replace("S", sparse_kind) for gradient in gradients]
        layout = call.layout(cut, kinds)
        results: list[Any] = [None] * len(gradients)
        begun: list[_Finish] = []
        traced = overlap.begin()
        for bucket in cut:
            # Nothing of the step is left to be computed while the last bucket is reduced, so its op
            # need not wait for the results; behind a gate it has to have succeeded.
            last = bucket is cut[-1] and not gate.wanted()
            call = dataclasses.replace(call, early=last)
            begun.append(call.begin_bucket(bucket, gradients, layout))
            if not xla.compiling():
                begun.pop()(results)
        # XLA keeps the order: the first is waited for when all have been begun.
        for finish in begun:
            finish(results)
        overlap.pin(traced)
        return results

    def _groups_by_position(self, variables: Sequence[Any]) -> buckets.Groups:
        groups = self.options.groups
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
class _Reduction:
    """What the buckets of one call of GradientReducer.reduce have in common, but for `early`."""

    options: ReduceOptions
    name: str
    variables: Sequence[Any]
    loss_scaled: bool = False
    early: bool = False

    def layout(self, cut: Sequence[buckets.Bucket], kinds: Sequence[str]) -> int:
        """Returns the layout hash; tells the runtime what to say where ranks differ."""
        specs = [_text_of(variable) for variable in self.variables]
        options = (self.options.op, self.options.gradient_predivide_factor)
        found = buckets.layout_hash(cut, kinds, f"{specs}{options}")
        # What travels with the gradients comes last, and is nobody's variable.
        own = [v for v in self.variables if not isinstance(v, tf.TensorSpec)]
        describe_layout(found, kinds[: len(own)], own, specs[: len(own)])
        return found

    def as_dense(self, gradient: Any) -> Any:
        if not isinstance(gradient, tf.IndexedSlices):
            return gradient
        choice = self.options.sparse_as_dense
        if choice is not True and not xla.compiling():
            return gradient
        if choice is False and topology.rank() == 0:
            _say_dense()
        with arguments.on_device(self.options.device_dense):
            return tf.convert_to_tensor(gradient)

    def begin_bucket(self, bucket: buckets.Bucket, gradients: list[Any], layout: int) -> _Finish:
        """Begins to reduce what exists of one bucket; the function returned gives the results.

        A bucket for which this rank has no gradient is reduced all the same, with one element: if
        other ranks have gradients there, the layout hashes differ, and all ranks get an error
        instead of waiting for this one.
        """
        name = f"{self.name}.{bucket.index}"
        dense = [p for p in bucket.positions if _kind(gradients[p]) == "D"]
        slices = [p for p in bucket.positions if _kind(gradients[p]) == "S"]
        finish_dense: _Finish | None = None
        if dense or not slices:
            with arguments.on_device(self.options.device_dense):
                finish_dense = self._begin_dense(name, bucket, dense, gradients, layout)

        def finish(results: list[Any]) -> None:
            agreed: list[Any] = []  # results of a collective that compared the layouts
            if finish_dense is not None:
                with arguments.on_device(self.options.device_dense):
                    agreed = [finish_dense(results)]
            if slices:
                sparse_name = f"{name}.sparse" if agreed else name
                with tf.control_dependencies(agreed):
                    self._reduce_slices(sparse_name, slices, gradients, results, layout)

        return finish

    def _reduce_slices(
        self,
        name: str,
        positions: list[int],
        gradients: list[Any],
        results: list[Any],
        layout: int,
    ) -> None:
        sparse.check_op(self.options.op, name)
        reduction = sparse.SparseReduction(
            op=self.options.op,
            process_set_id=process_sets.checked_id(self.options.members),
            choose=self.options.sparse_as_dense == "auto",
            device=self.options.device_sparse,
            layout=layout,
            prescale=1.0 / self.options.gradient_predivide_factor,
            postscale=self.options.gradient_predivide_factor,
        )
        reduced = reduction.reduce(
            [gradients[p] for p in positions], name, [self._compressor(p) for p in positions]
        )
        for p, gradient in zip(positions, reduced, strict=True):
            results[p] = gradient

    def _begin_dense(
        self,
        name: str,
        bucket: buckets.Bucket,
        positions: list[int],
        gradients: list[Any],
        layout: int,
    ) -> _Finish:
        """Begins to reduce the dense gradients of one bucket.

        A compression may choose another type for each gradient: each type is one collective. The
        function that this returns returns the first collective's first result.
        """
        if not positions:
            wait = self._begin_allreduce([tf.zeros([1], bucket.dtype)], name, layout)
            return lambda results: wait()[0]
        compressors = [self._compressor(p) for p in positions]
        real = [self._as_real(gradients[p], p) for p in positions]
        sent = [c.compress(each) for c, each in zip(compressors, real, strict=True)]
        wires, contexts = zip(*sent, strict=True)
        agreed: list[Any] = []
        begun: list[tuple[list[int], Callable[[], list[Any]]]] = []
        for part_name, part in arguments.by_dtype(wires, name):
            of_part = [self.variables[positions[i]] for i in part]
            name_gradients(part_name, of_part, loss_scaled=self.loss_scaled)
            # Later parts wait for the first, which fails if the ranks' layouts differ.
            with tf.control_dependencies(agreed):
                wait = self._begin_allreduce([wires[i] for i in part], part_name, layout)
            if not xla.compiling():
                agreed = agreed or wait()[:1]
            begun.append((part, wait))

        def finish(results: list[Any]) -> Any:
            waited = [(part, wait()) for part, wait in begun]
            for part, reduced in waited:
                for i, tensor in zip(part, reduced, strict=True):
                    result = compressors[i].decompress(tensor, contexts[i])
                    complex_ = gradients[positions[i]].dtype.is_complex
                    results[positions[i]] = as_complex(result) if complex_ else result
            return waited[0][1][0]

        return finish

    def _begin_allreduce(
        self, tensors: list[Any], name: str, layout: int
    ) -> Callable[[], list[Any]]:
        factor = self.options.gradient_predivide_factor
        begin = allreduce.start_bucket_allreduce if xla.compiling() else self._reduced
        return begin(
            tensors,
            name=name,
            op=self.options.op,
            prescale_factor=1.0 / factor,
            postscale_factor=factor,
            layout_hash=layout,
            process_set=self.options.members,
        )

    def _reduced(self, tensors: list[Any], **options: Any) -> Callable[[], list[Any]]:
        reduced = allreduce.bucket_allreduce(tensors, early=self.early, **options)
        return lambda: reduced

    def _as_real(self, gradient: Any, position: int) -> Any:
        """Returns a gradient as it travels: a complex one as pairs of numbers."""
        if not gradient.dtype.is_complex:
            return gradient
        if self.options.op not in (reduce_ops.Average, reduce_ops.Sum):
            raise TypeError(
                f"the gradient of {variable_name(self.variables[position])!r} is complex, which "
                f"op={reduce_ops.name_of(self.options.op)} does not take; use op=Average or op=Sum"
            )
        return as_pair(gradient)

    def _compressor(self, position: int) -> Any:
        if self.variables[position] is weights.WIRE:
            return Compression.none
        if self.variables[position] is first_steps.WIRE:
            known = self.options.compression in (Compression.fp16, Compression.bf16)
            return self.options.compression if known else Compression.none
        choose = getattr(self.options.compression, "for_variable", None)
        return self.options.compression if choose is None else choose(self.variables[position])


def _divided(gradient: Any, scale: Any) -> Any:
    return sparse.times(gradient, 1.0 / tf.cast(scale, tf.float64))


def _while_outside(gradients: list[Any], process_set_id: int) -> list[Any]:
    """The gradients of a rank outside of the process set; in a graph as long as the set exists.

    The graph holds nothing else of the set: after another init, where this rank may be in it, the
    other members would wait for this rank.
    """
    if tf.executing_eagerly():
        return gradients
    with tf.control_dependencies([topology_ops.process_set_included_op(process_set_id)]):
        return [
            g if g is None else tf.nest.map_structure(tf.identity, g, expand_composites=True)
            for g in gradients
        ]


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


def _text_of(variable: Any) -> str:
    """Returns dtype and shape; of a tensor the shape may be known on some ranks only."""
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
        "jit_compile=True: gradients of embeddings (tf.IndexedSlices) are reduced as dense tensors "
        "of whole tables. sparse_as_dense=True is the same without this line; "
        "jit_compile=False reduces only the rows that a step uses"
    )
