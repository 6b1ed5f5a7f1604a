"""DistributedGradientTape: a tape whose gradients are reduced over the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfring.ops import backward, names
from tfring.runtime import process_sets
from tfring.training import double_reduction, weights
from tfring.training.options import ReduceOptions, TapeOptions
from tfring.training.reducer import GradientReducer
from tfring.training.reduction_record import reductions

if TYPE_CHECKING:
    from typing_extensions import Unpack


def _name_of(set_id: int) -> str:
    """Returns the start of the names of the collectives of one call of `gradient`.

    A tape is a new object in every step and every trace, so the call is numbered, as calls without
    a name are: in the function that is traced, or in the process in eager mode. The sources are no
    part of the name: ranks that differentiate by other lists use the same names, and get an error.
    """
    call = names.collective_name("gradient", None, process_set_id=set_id)
    return f"{double_reduction.TAPE_PREFIX}{call}"


class DistributedGradientTape(tf.GradientTape):  # type: ignore[misc]
    """Wraps a tf.GradientTape: `gradient` returns gradients reduced over the ranks.

    Everything else is the wrapped tape's own: recording, watching, persistence, and `jacobian` and
    `batch_jacobian`, whose results stay local. Either of the two tapes can be entered. Works in
    eager mode and in a tf.function; used by the thread that uses the wrapped tape.

    Args:
        gradtape: the tf.GradientTape to wrap.
        **options: tfring.keras.DistributedOptimizer describes them: compression, device_dense,
            device_sparse, gradient_predivide_factor, groups, num_groups, op, process_set,
            sparse_as_dense, before_reduce, after_reduce, local_layers, scale_local_gradients.
            And `weight_by`: what this rank's loss was divided by, for example its number of rows
            or of valid tokens, as a number or scalar tensor. With Average the result is then the
            gradient of the mean over all ranks' rows or tokens, `sum(weight * gradient) /
            sum(weight)`. A rank with weight 0 counts as nothing, even if its gradient is NaN. Give
            it on all ranks, or on none.

    Raises:
        ValueError: `gradtape` is wrapped already, options contradict each other, or the process set
            is not registered.
        TypeError: there is no such option, or an argument has a wrong type.
    """

    def __init__(self, gradtape: Any, **options: Unpack[TapeOptions]) -> None:
        if isinstance(gradtape, DistributedGradientTape):
            raise ValueError("this tape is a DistributedGradientTape already; wrap it once")
        if not isinstance(gradtape, tf.GradientTape):
            raise TypeError(f"need a tf.GradientTape to wrap, not {type(gradtape).__name__}")
        weight_by = options.get("weight_by")
        if isinstance(weight_by, str) or callable(weight_by):
            raise TypeError(
                f"weight_by must be a number or a tensor, not {weight_by!r}: a tape knows no batch"
            )
        self._wrapped = gradtape
        self._reducer = GradientReducer(
            ReduceOptions.read("DistributedGradientTape", options, TapeOptions)
        )

    def register_local_source(self, source: Any) -> None:
        """Makes the gradient of a variable, or of a tensor, stay this rank's own.

        Args:
            source: what is differentiated; its gradient is divided by the size of the process set
                if `scale_local_gradients` says so.
        """
        self._reducer.local.register(source)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def get_local_and_global_gradients(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """Differentiates, and sorts the gradients by whether `gradient` would reduce them.

        Reduces none, so it runs no collective.

        Args:
            target: tensors to differentiate.
            sources: nested structure of variables or tensors.
            output_gradients: as in tf.GradientTape.gradient.
            use_generic_names: accepted for Horovod's sake.

        Returns:
            Two lists of (gradient, source): of the registered local sources, and of all others.
        """
        del use_generic_names
        found = self._wrapped.gradient(target, sources, output_gradients=output_gradients)
        return self._split(tf.nest.flatten(found), tf.nest.flatten(sources))

    def _split(
        self, gradients: Sequence[Any], sources: Sequence[Any]
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        local = self._reducer.local.positions(sources)
        pairs = list(zip(gradients, sources, strict=True))
        return (
            [pair for i, pair in enumerate(pairs) if i in local],
            [pair for i, pair in enumerate(pairs) if i not in local],
        )

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """Differentiates `target` and reduces the result over the ranks.

        Args:
            target: tensors to differentiate.
            sources: nested structure of variables or tensors; the result has the same structure.
            output_gradients: as in tf.GradientTape.gradient.
            use_generic_names: accepted for Horovod's sake; names are always generic here.
            unconnected_gradients: as in tf.GradientTape.gradient. With ZERO a gradient that does
                not exist on this rank takes part as zeros.

        Returns:
            tf.Tensor, tf.IndexedSlices or None for every source.

        Raises:
            tf.errors.FailedPreconditionError: tfring is not initialized, or ranks disagree about
                the list of sources, about which gradients exist or about their shapes.
        """
        del use_generic_names
        weight = self._reducer.options.weight_by
        targets = tf.nest.flatten(target)
        with backward.counted(lambda: weight), backward.announce(weight, targets):
            local = self._wrapped.gradient(
                target,
                sources,
                output_gradients=output_gradients,
                unconnected_gradients=unconnected_gradients,
            )
        backward.over(tf.nest.flatten(local))
        flat_sources = tf.nest.flatten(sources)
        if not flat_sources:
            return local
        set_id = process_sets.checked_id(self._reducer.options.process_set)
        flat = tf.nest.flatten(local)
        name = _name_of(set_id)
        if weight is not None:
            narrow = self._reducer.options.narrow(flat_sources)
            # Eager calls take turns with some numbers.
            key = name.rstrip("0123456789") if tf.executing_eagerly() else name
            weight = weights.of_step(weight, key, process_set_id=set_id, narrow=narrow)
        reduced = self._reducer.reduce(flat, flat_sources, name=name, weight=weight)
        _, shared = self._split(flat, flat_sources)
        reductions.add_by_tape((v for _, v in shared), set_id)
        return tf.nest.pack_sequence_as(local, reduced)

    def __enter__(self) -> DistributedGradientTape:
        self._wrapped.__enter__()
        return self

    def __exit__(self, *exc: Any) -> Any:
        return self._wrapped.__exit__(*exc)

    def watch(self, tensor: Any) -> None:
        """As tf.GradientTape.watch."""
        self._wrapped.watch(tensor)

    def stop_recording(self) -> Any:
        """As tf.GradientTape.stop_recording."""
        return self._wrapped.stop_recording()

    def reset(self) -> None:
        """As tf.GradientTape.reset."""
        self._wrapped.reset()

    def watched_variables(self) -> Any:
        """As tf.GradientTape.watched_variables."""
        return self._wrapped.watched_variables()

    def jacobian(self, *args: Any, **kwargs: Any) -> Any:
        """As tf.GradientTape.jacobian, of this rank's target alone."""
        return self._wrapped.jacobian(*args, **kwargs)

    def batch_jacobian(self, *args: Any, **kwargs: Any) -> Any:
        """As tf.GradientTape.batch_jacobian, of this rank's target alone."""
        return self._wrapped.batch_jacobian(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "_wrapped":  # __init__ failed before it was set
            raise AttributeError(name)
        return getattr(self._wrapped, name)


PartialDistributedGradientTape = DistributedGradientTape
"""Horovod's name for a tape with `local_layers`."""
