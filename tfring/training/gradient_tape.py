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

    A tape is a new object in every step and every trace, so the call is numbered, like calls
    without a name: in the function that is traced, or in eager mode in the process. The sources are
    not part of the name. So ranks that differentiate by different lists use the same names, and get
    an error.
    """
    call = names.collective_name("gradient", None, process_set_id=set_id)
    return f"{double_reduction.TAPE_PREFIX}{call}"


class DistributedGradientTape(tf.GradientTape):  # type: ignore[misc]
    """Wraps a tf.GradientTape: `gradient` returns gradients reduced over the ranks.

    All other methods are those of the wrapped tape. The results of `jacobian` and `batch_jacobian`
    stay local. You may enter either of the two tapes. Works in eager mode and in a tf.function, in
    the thread that uses the wrapped tape.

    Args:
        gradtape: the tf.GradientTape to wrap.
        **options: see tfring.keras.DistributedOptimizer: compression, device_dense, device_sparse,
            gradient_predivide_factor, groups, num_groups, op, process_set, sparse_as_dense,
            before_reduce, after_reduce, local_layers, scale_local_gradients. Also `weight_by`: the
            number that this rank's loss was divided by, for example its rows or valid tokens, as a
            number or scalar tensor. With Average the result is then the gradient of the mean over
            all ranks' rows or tokens, `sum(weight * gradient) / sum(weight)`. A rank with weight 0
            does not count, even if its gradient is NaN. Give it on all ranks, or on none.

    Raises:
        ValueError: `gradtape` is wrapped already, options contradict each other, or the process set
            is not registered.
        TypeError: an unknown option, or an argument of a wrong type.
    """

    def __init__(self, gradtape: Any, **options: Unpack[TapeOptions]) -> None:
        if isinstance(gradtape, DistributedGradientTape):
            raise ValueError("this tape is a DistributedGradientTape already; wrap it once")
        if not isinstance(gradtape, tf.GradientTape):
            raise TypeError(f"need a tf.GradientTape to wrap, not {type(gradtape).__name__}")
        weight_by = options.get("weight_by")
        if isinstance(weight_by, str) or callable(weight_by):
            raise TypeError(
                f"weight_by must be a number or a tensor, not {weight_by!r}: a tape does not know "
                "the batch"
            )
        self._wrapped = gradtape
        self._reducer = GradientReducer(
            ReduceOptions.read("DistributedGradientTape", options, TapeOptions)
        )

    def register_local_source(self, source: Any) -> None:
        """Keeps the gradient of a variable or tensor on this rank: it is not reduced.

        Args:
            source: what is differentiated. Its gradient is divided by the size of the process set,
                unless `scale_local_gradients` is False.
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
        """Differentiates, and separates local gradients from those that `gradient` would reduce.

        Runs no collective.

        Args:
            target: tensors to differentiate.
            sources: nested structure of variables or tensors.
            output_gradients: as in tf.GradientTape.gradient.
            use_generic_names: accepted for Horovod scripts.

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
            use_generic_names: accepted for Horovod scripts; names are always generic here.
            unconnected_gradients: as in tf.GradientTape.gradient. With ZERO a gradient that does
                not exist on this rank is reduced as zeros.

        Returns:
            tf.Tensor, tf.IndexedSlices or None for every source.

        Raises:
            tf.errors.FailedPreconditionError: tfring is not initialized, or the ranks' lists of
                sources, existing gradients or shapes differ.
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
            # Eager calls reuse a few numbers in turn.
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
        """As tf.GradientTape.jacobian, of this rank's target only."""
        return self._wrapped.jacobian(*args, **kwargs)

    def batch_jacobian(self, *args: Any, **kwargs: Any) -> Any:
        """As tf.GradientTape.batch_jacobian, of this rank's target only."""
        return self._wrapped.batch_jacobian(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "_wrapped":  # __init__ failed before it set this
            raise AttributeError(name)
        return getattr(self._wrapped, name)


PartialDistributedGradientTape = DistributedGradientTape
"""Horovod's name for a tape with `local_layers`."""
