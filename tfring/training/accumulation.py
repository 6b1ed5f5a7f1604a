"""LocalGradientAggregationHelper: sums gradients over passes, reduces them once per update."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfring.collectives import sparse
from tfring.runtime import process_sets
from tfring.training.local_variables import LocalVariables, variable_key
from tfring.training.options import ReduceOptions
from tfring.training.reducer import GradientReducer


@dataclasses.dataclass
class _State:
    """The variables of one helper in one graph, or in eager mode and all tf.functions."""

    counter: Any
    keys: tuple[Any, ...]
    sums: dict[int, Any] = dataclasses.field(default_factory=dict)


class LocalGradientAggregationHelper:
    """Accumulates gradients locally and reduces their sum in the last of several passes.

    For training loops without DistributedOptimizer, which has backward_passes_per_step. In every
    pass call both:

        gradients = helper.compute_gradients(tape.gradient(loss, variables), variables)
        helper.apply_gradients(lambda: optimizer.apply(gradients, variables))

    Works in eager mode, in a tf.function (traced once) and in TF1 graphs. Keeps one dense
    accumulator per variable, so tf.IndexedSlices become dense. One helper serves one list of
    variables, in the thread that runs or traces the steps.
    """

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Callable[[list[Any], list[Any]], Sequence[Any]] | None = None,
        sparse_as_dense: bool = True,
        average_aggregated_gradients: bool = False,
        rank: int | None = None,
        optimizer_type: Any = None,
        process_set: Any = process_sets.global_process_set,
        scale_local_gradients: bool = True,
        name: str = "",
    ) -> None:
        """Sets how to accumulate.

        Args:
            backward_passes_per_step: the number of passes per update.
            allreduce_func: f(gradients, variables), returns reduced gradients. A graph calls it
                once, when it is traced. None averages over the process set.
            sparse_as_dense: accepted for Horovod scripts; accumulators are always dense.
            average_aggregated_gradients: use the mean over the passes instead of their sum.
            rank: accepted for Horovod scripts.
            optimizer_type: accepted for Horovod scripts.
            process_set: the ranks to reduce over if there is no allreduce_func.
            scale_local_gradients: divide local variables' gradients by the size of the process set.
            name: part of the names of collectives: equal on all ranks, different for each helper.

        Raises:
            ValueError: backward_passes_per_step is not positive.
        """
        del sparse_as_dense, rank, optimizer_type
        if backward_passes_per_step < 1:
            raise ValueError(
                f"backward_passes_per_step must be at least 1, not {backward_passes_per_step}"
            )
        self.backward_passes_per_step = backward_passes_per_step
        self.average_aggregated_gradients = average_aggregated_gradients
        self.name = name
        self.local = LocalVariables(scale=scale_local_gradients, process_set=process_set)
        if allreduce_func is None:
            reducer = GradientReducer(ReduceOptions(process_set=process_set))
            base = f"tfring.aggregation.{name}"

            def allreduce_func(gradients: list[Any], variables: list[Any]) -> list[Any]:
                return reducer.reduce(gradients, variables, name=base)

        self._reduce = allreduce_func
        self._graphs: weakref.WeakKeyDictionary[Any, _State] = weakref.WeakKeyDictionary()
        self._eager: _State | None = None
        self._is_update: Any = None

    @property
    def variables(self) -> list[Any]:
        """The accumulators and the number of passes; not in TF1 graphs."""
        state = self._eager
        return [] if state is None else [state.counter, *state.sums.values()]

    def register_local_var(self, var: Any) -> None:
        """Keeps the gradient of a variable on this rank: it is not reduced."""
        self.local.register(var)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def compute_gradients(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:
        """Adds this pass's gradients; the last pass returns the reduced sums and starts anew.

        Args:
            grads: tf.Tensor, tf.IndexedSlices or None, one per variable.
            vars: tf.Variable or keras.Variable, the same in every pass.

        Returns:
            Dense tensors, None where no pass had a gradient. The last pass returns the reduced
            sums. The others return `grads`, which apply_gradients does not apply.

        Raises:
            ValueError: the variables differ from those of earlier passes.
            tf.errors.FailedPreconditionError: as DistributedGradientTape.gradient.
        """
        state = self._state(vars)
        given = [None if g is None else tf.convert_to_tensor(g) for g in grads]
        added = []
        for i, gradient in enumerate(given):
            if gradient is not None:
                added.append(_add(self._sum(state, i, gradient, vars[i]), gradient))
        live = sorted(state.sums)
        with tf.control_dependencies(added):
            count = state.counter.assign_add(1)
            self._is_update = tf.equal(tf.identity(count), self.backward_passes_per_step)
        with tf.control_dependencies([self._is_update]):
            chosen = tf.cond(
                self._is_update,
                lambda: self._update(state, live, vars),
                lambda: [
                    tf.zeros_like(state.sums[i]) if given[i] is None else tf.identity(given[i])
                    for i in live
                ],
            )
        results: list[Any] = [None] * len(given)
        for i, gradient in zip(live, tf.nest.flatten(chosen), strict=True):
            results[i] = gradient
        return results

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def apply_gradients(
        self,
        apply_grads_closure: Callable[[], Any],
        optimizer: Any = None,
        *args: Any,
        global_step: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Calls the closure in the last pass only.

        Args:
            apply_grads_closure: applies what compute_gradients returned.
            optimizer: accepted for Horovod scripts. Its iterations count updates, not passes.
            *args: accepted for Horovod scripts.
            global_step: a variable that counts passes. The closure increments it in the last pass,
                this method in the others.
            **kwargs: accepted for Horovod scripts.

        Returns:
            In a graph: a tensor to run, true if there was an update.

        Raises:
            RuntimeError: compute_gradients was not called before.
        """
        del optimizer, args, kwargs
        if self._is_update is None:
            raise RuntimeError("call compute_gradients before apply_gradients in every pass")
        is_update, self._is_update = self._is_update, None

        def update() -> Any:
            done = apply_grads_closure()
            with tf.control_dependencies(_operations(done)):
                return tf.constant(True)

        def skip() -> Any:
            counted = [] if global_step is None else [global_step.assign_add(1)]
            with tf.control_dependencies(_operations(counted)):
                return tf.constant(False)

        return tf.cond(is_update, update, skip)

    def _update(self, state: _State, live: list[int], variables: Sequence[Any]) -> list[Any]:
        sums = [tf.identity(state.sums[i].read_value()) for i in live]
        with tf.control_dependencies(sums):
            resets = [
                state.sums[i].assign(tf.zeros_like(s)) for i, s in zip(live, sums, strict=True)
            ]
            resets.append(state.counter.assign(0))
        if self.average_aggregated_gradients:
            sums = [sparse.times(s, 1.0 / self.backward_passes_per_step) for s in sums]
        local = self.local.positions([variables[i] for i in live])
        shared = [n for n in range(len(live)) if n not in local]
        reduced = self._reduce([sums[n] for n in shared], [variables[live[n]] for n in shared])
        for n, gradient in zip(shared, reduced, strict=True):
            sums[n] = gradient
        ours = self.local.scaled([sums[n] for n in sorted(local)])
        for n, gradient in zip(sorted(local), ours, strict=True):
            sums[n] = gradient
        with tf.control_dependencies(resets):
            return [tf.identity(s) for s in sums]

    def _state(self, variables: Sequence[Any]) -> _State:
        keys = tuple(variable_key(v) for v in variables)
        with tf.init_scope():
            graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
            state = self._eager if graph is None else self._graphs.get(graph)
            if state is None:
                # On GPUs, TensorFlow keeps int32 variables in host memory, where XLA does not read
                # them. XLA compiles no TF1 graph, so there int32 stays: a Saver's old files remain
                # valid.
                dtype = tf.int64 if graph is None else tf.int32
                state = _State(tf.Variable(0, trainable=False, dtype=dtype, name="passes"), keys)
                if graph is None:
                    self._eager = state
                else:
                    self._graphs[graph] = state
        if state.keys != keys:
            raise ValueError(
                "a LocalGradientAggregationHelper serves one list of variables, always in the "
                "same order. Make another helper for these variables"
            )
        return state

    def _sum(self, state: _State, position: int, gradient: Any, variable: Any) -> Any:
        if position not in state.sums:
            shape, dtype = tf.TensorShape(variable.shape), gradient.dtype
            with tf.init_scope():
                state.sums[position] = tf.Variable(
                    tf.zeros(shape, dtype), trainable=False, name=f"accumulated_{position}"
                )
        return state.sums[position]


def _add(total: Any, gradient: Any) -> Any:
    """Adds to a variable.

    TensorFlow adds to complex variables with a CPU kernel, also if they are in GPU memory. That
    would end the process with SIGSEGV.
    """
    if gradient.dtype.is_complex:
        return total.assign(total + gradient)
    return total.assign_add(gradient)


def _operations(results: Any) -> list[Any]:
    """Returns the closure's results that a graph can wait for."""
    flat = tf.nest.flatten(results)
    return [r for r in flat if isinstance(r, (tf.Tensor, tf.Operation, tf.Variable))]
