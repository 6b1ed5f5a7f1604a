"""Reduces one step's gradients, for the tape and the optimizers.

What happens to a gradient, in this order:

1. It is divided by the loss scale, if it has one. The ranks' scales may differ, for example if one
rank alone has loaded its state. Hooks and compression must see the true magnitude.
2. The user's before_reduce gets it.
3. It is multiplied by this rank's weight (weights.py), if ranks have different weights.
4. tf.IndexedSlices become dense, if sparse_as_dense is True, and always under XLA.
5. The list of variables is cut into buckets (collectives/buckets.py).
6. The gradients of a bucket are compressed, reduced by one collective and decompressed. Complex
gradients are sent as pairs of real numbers.
7. It is divided by the mean weight of the ranks, which was reduced with the gradients.
8. The user's after_reduce gets it.
9. It is multiplied by the loss scale, if step 1 divided it.

An optimizer's own clipping comes after all that. Gradients of local variables (local_variables.py)
skip these steps; they are divided by the number of ranks, if the user wants that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfring.collectives import allreduce, buckets, sparse
from tfring.ops import reduce_ops, topology_ops
from tfring.runtime import process_sets, topology
from tfring.training import (
    double_reduction,
    first_steps,
    gate,
    unreduced,
    weights,
)
from tfring.training.bucket_reduction import BucketReduction
from tfring.training.local_variables import LocalVariables
from tfring.training.options import ReduceOptions, call_hook
from tfring.training.reduction_record import reductions
from tfring.training.shards import EqualShards


class GradientReducer:
    """Cuts gradients into buckets and reduces them over the ranks of a process set.

    Works in eager mode and while a function is traced. Keeps nothing between steps, so a retrace
    builds the same operations under the same names. Belongs to one tape or optimizer.
    """

    def __init__(self, options: ReduceOptions) -> None:
        """Prepares a reducer; `local` holds the variables whose gradients stay on this rank."""
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
        shards: EqualShards | None = None,
    ) -> list[Any]:
        """Returns the reduced gradients, None where there was none.

        On a rank outside the process set the gradients stay local, as in Horovod; the hooks are
        still called with them.

        Args:
            gradients: tf.Tensor, tf.IndexedSlices or None, one per variable.
            variables: one per gradient; only dtype, shape and identity are used.
            name: the collectives are called `name`.0, `name`.1 and so on.
            unscale: the loss scale that the gradients were multiplied by; hooks and compression get
                them without it.
            loss_scaled: the optimizer looks for inf and nan in the result and lowers its loss
                scale; needs an `unscale` that is not a known plain number.
            weight: this rank's weight; None if all ranks weigh the same. Local gradients are
                multiplied by it, too.
            shards: the result has this rank's shards of all gradients but the local ones.

        Raises:
            tf.errors.FailedPreconditionError: tfring is not initialized. Or, when the operation
                runs, the ranks' existing gradients or their shapes differ.
        """
        if not topology.is_initialized():
            raise tf.errors.FailedPreconditionError(
                None,
                None,
                f"The gradients of {name} cannot be reduced: tfring has not been initialized.\n"
                "Call hvd.init() at the beginning of the program.",
            )
        loss_scaled = loss_scaled or not isinstance(unscale, (int, float, type(None)))
        local = self.local.positions(variables)
        shared = [i for i in range(len(variables)) if i not in local]
        members = process_sets.checked_id(self.options.members)
        reductions.add((variables[i] for i in shared if gradients[i] is not None), members)
        reductions.add_local(variables[i] for i in local)
        results: list[Any] = list(gradients)
        given, reduced_for = [gradients[i] for i in shared], [variables[i] for i in shared]
        weight = weight if self.options.included else None
        asked = None
        if self.options.included:
            # The first step with shards mixes the weights of all ranks.
            asked = first_steps.ask(
                reduced_for,
                name,
                self.options.members,
                self.options.op,
                from_first=self.options.shard_states,
            )
        reduced, answers = self._reduce_shared(
            given, reduced_for, name, unscale, loss_scaled, weight, asked, shards
        )
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
            why: the reason, equal on all ranks that come here.

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
        gradients: list[Any],
        variables: list[Any],
        name: str,
        unscale: Any,
        loss_scaled: bool,
        weight: weights.Weight | None,
        asked: first_steps.Asked | None,
        shards: EqualShards | None,
    ) -> tuple[list[Any], Any]:
        options, answers = self.options, None
        included = options.included
        if included and options.op == reduce_ops.Average:
            double_reduction.warn_of_averages(gradients, variables, options.members)
        divisor = self._divisor(variables, unscale, name)
        if divisor is not None:
            gradients = [_divided(gradient, divisor) for gradient in gradients]
        gradients = call_hook(options.before_reduce, gradients, variables)
        if included:
            # This rank's weight and its questions to the others travel with the gradients.
            specs, sent = list(variables), list(gradients)
            if weight is not None:
                specs.append(weights.WIRE)
                sent = [*weight.applied_to(gradients), weight.wire()]
            if asked is not None:
                specs.append(first_steps.WIRE)
                sent.append(asked.said)
            reduction = BucketReduction(options, name, specs, loss_scaled, shards)
            gradients = gate.behind_all(reduction.reduce(sent))
            if asked is not None:
                answers = gradients.pop()
            if weight is not None:
                wire = gradients.pop()
                gradients = weight.divide(gradients, wire)
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
        """Returns the divisor of the gradients before they are reduced; None for none.

        A loss scale that is a plain number is equal on all ranks. float16 gradients may vanish
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


def _divided(gradient: Any, scale: Any) -> Any:
    return sparse.times(gradient, 1.0 / tf.cast(scale, tf.float64))


def _while_outside(gradients: list[Any], process_set_id: int) -> list[Any]:
    """Returns the gradients on a rank outside the process set; in a graph, while the set exists.

    The graph holds nothing else of the set. After another init this rank may be in it, and the
    other members would wait for it.
    """
    if tf.executing_eagerly():
        return gradients
    with tf.control_dependencies([topology_ops.process_set_included_op(process_set_id)]):
        return [
            g if g is None else tf.nest.map_structure(tf.identity, g, expand_composites=True)
            for g in gradients
        ]
