"""DistributedOptimizer for Keras 3; it hands optimizers of Keras 2 to tfring.keras2."""

from __future__ import annotations

import gc
from typing import Any

import keras
import tensorflow as tf

from tfring.collectives.compression import Compression
from tfring.keras import accumulation, detect, loss_scale, loss_weights, validation_split
from tfring.keras.hook import OptimizerHook, find_hook, innermost, steps_taken
from tfring.keras.keras2 import optimizer as keras2_optimizer
from tfring.ops import reduce_ops
from tfring.runtime import process_sets
from tfring.training.local_variables import LocalVariables
from tfring.training.options import (
    LOSS,
    GradientTransform,
    OptimizerOptions,
    ReduceOptions,
    resolve_groups,
)
from tfring.training.ordinals import Ordinals
from tfring.training.reducer import GradientReducer

_optimizers = Ordinals()


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: Any = False,
    gradient_predivide_factor: float = 1.0,
    op: int = reduce_ops.Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = process_sets.global_process_set,
    scale_local_gradients: bool = True,
    *,
    before_reduce: GradientTransform | None = None,
    after_reduce: GradientTransform | None = None,
    weight_by: Any = LOSS,
    resumed: bool = False,
) -> Any:
    """Makes `optimizer` reduce gradients over the ranks before it applies them.

    Changes the object itself, so that saving sees a plain optimizer, with the options beside it.
    Call it before the first step. Compression and hooks get gradients without a loss scale; hooks
    are traced with the step and, where gradients are accumulated, run once per update.

    The average is `sum(weight * gradient) / sum(weight)`. weight_by="loss" takes what the loss was
    divided by in Keras' own `train_step`; elsewhere ranks count alike, as with None.

    Args:
        optimizer: a keras.optimizers.Optimizer; of a LossScaleOptimizer the inner one is changed.
        name: a part of the collectives' names, the same on every rank; a number by default.
        device_dense: device for dense reductions, "" for TensorFlow's choice.
        device_sparse: device for sparse reductions, likewise.
        compression: Compression.none, fp16 or bf16, or a tfring.Compressor of your own.
        sparse_as_dense: make tf.IndexedSlices dense; "auto" chooses what moves fewer bytes.
        gradient_predivide_factor: with Average, divides by this before the sum, by the rest after.
        op: Average, Sum, Adasum, Min, Max or Product; tf.IndexedSlices need Average or Sum.
        backward_passes_per_step: so many passes are accumulated locally before one reduction.
        average_aggregated_gradients: use the mean over these passes instead of their sum.
        num_groups: cut the gradients into this many groups instead of by size.
        groups: a number, as num_groups, or lists of variables to reduce together.
        process_set: the ranks to reduce over. On other ranks gradients stay local.
        scale_local_gradients: divide gradients of local variables by the number of these ranks.
        before_reduce: f(gradients, variables) -> gradients; is called before the reduction.
        after_reduce: likewise, called after it and before the optimizer clips.
        weight_by: "loss", None, a number, variable or function of (x, y, sample_weight).
        resumed: the optimizer has taken steps, and no tf.function of yours that was traced then
            will run again; models trace their training step anew.

    Returns:
        `optimizer`, with a method register_local_var(var) for a variable not to be reduced.

    Raises:
        ValueError: it is wrapped or has taken steps already, or options contradict each other.
        TypeError: not a Keras 3 optimizer, or an option has a wrong type.
    """
    reduction = ReduceOptions(
        op=op,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        groups=resolve_groups(num_groups, groups),
        process_set=process_set,
        device_dense=device_dense,
        device_sparse=device_sparse,
        before_reduce=before_reduce,
        after_reduce=after_reduce,
        weight_by=weight_by,
    )
    local = LocalVariables(scale=scale_local_gradients, process_set=process_set)
    options = OptimizerOptions(
        reduction,
        local,
        name,
        passes=backward_passes_per_step,
        average=average_aggregated_gradients,
    )
    return wrap(optimizer, options, resumed)


def PartialDistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: Any = False,
    gradient_predivide_factor: float = 1.0,
    op: int = reduce_ops.Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: Any = None,
    process_set: Any = process_sets.global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
    *,
    before_reduce: GradientTransform | None = None,
    after_reduce: GradientTransform | None = None,
    weight_by: Any = LOSS,
    resumed: bool = False,
) -> Any:
    """Makes `optimizer` reduce gradients over the ranks, but not those of some layers.

    The parameters are those of DistributedOptimizer, and `local_layers`: a Keras layer, or several,
    whose trainable weights are this rank's own. They may be built later. Callbacks that broadcast
    or compare weights leave them out.

    Returns:
        `optimizer`.

    Raises:
        ValueError: as for DistributedOptimizer.
        TypeError: something in `local_layers` has no weights, or as for DistributedOptimizer.
    """
    reduction = ReduceOptions(
        op=op,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        groups=resolve_groups(0, groups),
        process_set=process_set,
        device_dense=device_dense,
        device_sparse=device_sparse,
        before_reduce=before_reduce,
        after_reduce=after_reduce,
        weight_by=weight_by,
    )
    local = LocalVariables(local_layers, scale=scale_local_gradients, process_set=process_set)
    options = OptimizerOptions(
        reduction,
        local,
        name,
        passes=backward_passes_per_step,
        average=average_aggregated_gradients,
    )
    return wrap(optimizer, options, resumed)


def wrap(optimizer: Any, options: OptimizerOptions, resumed: bool) -> Any:
    """Does the work of DistributedOptimizer; returns `optimizer`."""
    if detect.is_optimizer(optimizer):
        refuse_weight(options, "an optimizer of Keras 2")
        return keras2_optimizer.wrap(optimizer, options, resumed)
    _check_optimizer(optimizer)
    inner = innermost(optimizer)
    if not resumed:
        _refuse_used(inner)
    else:
        _trace_again(optimizer)
    accumulated = accumulation.of(inner, options.passes, options.average)

    def make_name(hook: OptimizerHook) -> str:
        if options.name is not None:
            return f"tfring.optimizer.{options.name}"
        # By process set: its members may use optimizers that the other ranks do not have.
        group = options.reduction.members
        return f"tfring.optimizer.{_optimizers.number(hook.key, group)}"

    reducer = GradientReducer(options.reduction, options.local)
    hook = OptimizerHook(inner, reducer, make_name, accumulated)
    hook.attach()
    if optimizer is not inner:
        object.__setattr__(optimizer, "register_local_var", hook.register_local_var)
    loss_scale.install()
    loss_weights.install(find_hook)
    validation_split.install()
    return optimizer


def refuse_weight(options: OptimizerOptions, what: str) -> None:
    """Raises NotImplementedError for a weight_by of which an optimizer would know nothing."""
    given = options.reduction.weight_by
    if given is not None and not isinstance(given, str):
        raise NotImplementedError(
            f"weight_by={given!r} needs an optimizer of Keras 3, and this is {what}.\n"
            "Use DistributedGradientTape(..., weight_by=...) and an optimizer that is not wrapped."
        )


def _refuse_used(optimizer: Any) -> None:
    """Raises ValueError if steps were taken: what was traced before would go on not reducing.

    A loaded optimizer looks the same, so whoever loads one has to say so.
    """
    steps = steps_taken(optimizer) if tf.executing_eagerly() else 0
    if steps > 0:
        raise ValueError(
            f"optimizer {optimizer.name!r} has taken {steps} steps already, and a step that was "
            "traced before would go on without reducing gradients.\nWrap it before its first step. "
            "Pass resumed=True if it was loaded (load_model does), or if you compile the model "
            "again and make your tf.functions anew."
        )


def _trace_again(optimizer: Any) -> None:
    """Makes models that have this optimizer trace their training step anew.

    What was traced before would go on without reducing. An optimizer does not know its model.
    """
    for each in gc.get_objects():
        if issubclass(type(each), keras.Model):
            its = vars(each).get("optimizer")
            if its is not None and innermost(its) is innermost(optimizer):
                each.train_function = None


def _check_optimizer(optimizer: Any) -> None:
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            "tfring works with Keras' TensorFlow backend, and this is "
            f"{keras.backend.backend()!r}: set KERAS_BACKEND=tensorflow before keras is imported"
        )
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            "DistributedOptimizer needs a Keras optimizer object, keras.optimizers.SGD(...), "
            f"not {optimizer!r} of type {type(optimizer).__module__}.{type(optimizer).__name__}"
        )
    hook, inner = find_hook(optimizer), innermost(optimizer)
    if hook is not None and hook.optimizer is inner:
        raise ValueError(
            f"optimizer {optimizer.name!r} is wrapped by DistributedOptimizer already; wrap it once"
        )
    if hook is not None:
        raise ValueError(
            f"optimizer {optimizer.name!r} holds {hook.optimizer.name!r}, which is wrapped by "
            "DistributedOptimizer already, so gradients would be reduced twice.\n"
            "Wrap the outermost optimizer alone."
        )
    for part in getattr(inner, "optimizers", ()):
        if find_hook(part) is not None:
            raise ValueError(
                f"optimizer {part.name!r} inside the MultiOptimizer is wrapped already; wrap the "
                "MultiOptimizer alone"
            )
