"""DistributedGradientTape: a tape whose gradients are reduced over the ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfring import reduce_ops
from tfring.compression import Compression
from tfring.reducer import GradientReducer, ReduceOptions, resolve_groups, variable_key

# Names must be those of the other ranks, and a tape is made anew in every step and every trace. So
# the number in a name belongs to the list of variables and not to the tape: the first list that is
# differentiated is number 0, and it stays that whatever is retraced.
_ordinals: dict[tuple[Any, ...], int] = {}


def _ordinal_of(sources: list[Any]) -> int:
    key = tuple(_source_key(source) for source in sources)
    return _ordinals.setdefault(key, len(_ordinals))


def _source_key(source: Any) -> Any:
    if isinstance(source, tf.Tensor):  # has no identity that outlives a trace
        return ("tensor", source.dtype.name)
    return variable_key(source)


class DistributedGradientTape(tf.GradientTape):  # type: ignore[misc]
    """Wraps a tf.GradientTape: `gradient` returns gradients reduced over the ranks.

    Everything else is the wrapped tape's own: recording, watching, persistence, and `jacobian` and
    `batch_jacobian`, whose results stay local. Either tape of the pair can be entered. Works in
    eager mode and in a tf.function; used by the thread that uses the tape.
    """

    def __init__(
        self,
        gradtape: Any,
        device_dense: str = "",
        device_sparse: str = "",
        compression: Any = Compression.none,
        sparse_as_dense: bool = False,
        op: int = reduce_ops.Average,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        groups: Any = None,
        process_set: Any = None,
        scale_local_gradients: bool = True,
    ) -> None:
        """Wraps `gradtape`.

        Args:
            gradtape: the tf.GradientTape to wrap.
            device_dense: device for dense reductions, "" for TensorFlow's choice.
            device_sparse: device for sparse reductions, likewise.
            compression: what is done to dense gradients on the wire.
            sparse_as_dense: turn tf.IndexedSlices into dense tensors before reducing.
            op: Average, Sum, Min, Max or Product.
            gradient_predivide_factor: with Average, divides by this before the sum and by the rest
                of the size after it.
            num_groups: cut the gradients into this many groups instead of by size.
            groups: a number, as num_groups, or lists of variables to reduce together.
            process_set: the ranks to reduce over; None is all, and no other is possible yet.
            scale_local_gradients: concerns local sources, which this version cannot register.

        Raises:
            ValueError: `gradtape` is wrapped already, or options contradict each other.
            NotImplementedError: op is Adasum.
        """
        del scale_local_gradients
        if isinstance(gradtape, DistributedGradientTape):
            raise ValueError("this tape is a DistributedGradientTape already; wrap it once")
        if not isinstance(gradtape, tf.GradientTape):
            raise TypeError(f"need a tf.GradientTape to wrap, not {type(gradtape).__name__}")
        self._wrapped = gradtape
        self._reducer = GradientReducer(
            ReduceOptions(
                op=op,
                compression=compression,
                sparse_as_dense=sparse_as_dense,
                gradient_predivide_factor=gradient_predivide_factor,
                groups=resolve_groups(num_groups, groups),
                process_set=process_set,
                device_dense=device_dense,
                device_sparse=device_sparse,
            )
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
            tf.errors.FailedPreconditionError: ranks disagree about which gradients exist.
        """
        del use_generic_names
        local = self._wrapped.gradient(
            target,
            sources,
            output_gradients=output_gradients,
            unconnected_gradients=unconnected_gradients,
        )
        flat_sources = tf.nest.flatten(sources)
        if not flat_sources:
            return local
        name = f"tfring.tape.{_ordinal_of(flat_sources)}"
        reduced = self._reducer.reduce(tf.nest.flatten(local), flat_sources, name=name)
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
        if name == "_wrapped":  # not there yet: __init__ failed
            raise AttributeError(name)
        return getattr(self._wrapped, name)
