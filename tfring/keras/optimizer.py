"""DistributedOptimizer for Keras 3."""

from __future__ import annotations

from typing import Any

import keras

from tfring import reduce_ops
from tfring.compression import Compression
from tfring.keras import loss_scale
from tfring.keras.hook import GradientHook, find_hook, innermost
from tfring.reducer import GradientReducer, ReduceOptions, resolve_groups

_wrapped = 0


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = reduce_ops.Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Makes `optimizer` reduce gradients over the ranks before it applies them.

    Works on the object that is given, and returns it: saving and loading see the plain optimizer.
    `init` may come later, but before the first training step.

    Args:
        optimizer: a keras.optimizers.Optimizer; inside a LossScaleOptimizer the inner one is meant.
        name: what the collectives are named after; by default a number, counting the optimizers
            that were wrapped in this process. Must be the same on every rank.
        device_dense: device for dense reductions, "" for TensorFlow's choice.
        device_sparse: device for sparse reductions, likewise.
        compression: what is done to dense gradients on the wire. Under loss scaling it sees
            gradients without the scale.
        sparse_as_dense: turn tf.IndexedSlices into dense tensors before reducing.
        gradient_predivide_factor: with Average, divides by this before the sum and by the rest of
            the size after it.
        op: Average, Sum, Min, Max or Product.
        backward_passes_per_step: accumulate so many steps locally, then reduce once and update;
            sets the optimizer's gradient_accumulation_steps, so it must not be built yet.
        average_aggregated_gradients: with backward_passes_per_step, use the mean over the passes
            instead of their sum. (With the optimizer's own gradient_accumulation_steps it is
            always the mean.)
        num_groups: cut the gradients into this many groups instead of by size.
        groups: a number, as num_groups, or lists of variables to reduce together.
        process_set: the ranks to reduce over; None is all, and no other is possible yet.
        scale_local_gradients: concerns local variables, which this version cannot register.

    Raises:
        ValueError: the optimizer is wrapped already, or options contradict each other.
        TypeError: not a Keras 3 optimizer.
        NotImplementedError: op is Adasum.
    """
    del scale_local_gradients
    inner = _check_optimizer(optimizer)
    options = ReduceOptions(
        op=op,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        groups=resolve_groups(num_groups, groups),
        process_set=process_set,
        device_dense=device_dense,
        device_sparse=device_sparse,
    )
    factor = _set_up_accumulation(inner, backward_passes_per_step, average_aggregated_gradients)
    global _wrapped
    base = f"tfring.optimizer.{_wrapped if name is None else name}"
    _wrapped += 1
    GradientHook(inner, GradientReducer(options), base, factor).attach()
    loss_scale.install()
    return optimizer


def _check_optimizer(optimizer: Any) -> Any:
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            "tfring works with Keras' TensorFlow backend, and this is "
            f"{keras.backend.backend()!r}: set KERAS_BACKEND=tensorflow before keras is imported"
        )
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            "DistributedOptimizer needs a Keras 3 optimizer object, keras.optimizers.SGD(...), "
            f"not {optimizer!r} of type {type(optimizer).__module__}.{type(optimizer).__name__}"
        )
    if find_hook(optimizer) is not None:
        raise ValueError(
            f"optimizer {optimizer.name!r} is wrapped by DistributedOptimizer already; wrap it once"
        )
    inner = innermost(optimizer)
    for part in getattr(inner, "optimizers", ()):
        if find_hook(part) is not None:
            raise ValueError(
                f"optimizer {part.name!r} inside the MultiOptimizer is wrapped already; wrap the "
                "MultiOptimizer alone"
            )
    return inner


def _set_up_accumulation(inner: Any, passes: int, average: bool) -> float:
    """Returns the factor for accumulated gradients, which Keras averages over the passes."""
    if passes < 1:
        raise ValueError(f"backward_passes_per_step must be at least 1, not {passes}")
    if passes == 1:
        return 1.0
    if inner.gradient_accumulation_steps:
        raise ValueError(
            f"optimizer {inner.name!r} has gradient_accumulation_steps="
            f"{inner.gradient_accumulation_steps} already; do not give "
            f"backward_passes_per_step={passes} as well"
        )
    if inner.built:
        raise ValueError(
            f"optimizer {inner.name!r} is built already and has no accumulators; make it with "
            f"gradient_accumulation_steps={passes} instead of backward_passes_per_step"
        )
    if hasattr(inner, "optimizers"):
        raise NotImplementedError("backward_passes_per_step cannot be used with a MultiOptimizer")
    inner.gradient_accumulation_steps = passes
    return 1.0 if average else float(passes)
