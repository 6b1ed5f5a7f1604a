"""DistributedOptimizer for Keras 3."""

from __future__ import annotations

import collections
from typing import Any

import keras

from tfring import process_sets
from tfring.collectives.compression import Compression
from tfring.keras import accumulation, loss_scale
from tfring.keras.hook import GradientHook, find_hook, innermost
from tfring.ops import reduce_ops
from tfring.training.local_variables import LocalVariables
from tfring.training.options import GradientHook as Hook
from tfring.training.options import ReduceOptions, resolve_groups
from tfring.training.reducer import GradientReducer

# By process set: its members may use optimizers that the other ranks do not have.
_used: collections.Counter[Any] = collections.Counter()


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
    before_reduce: Hook | None = None,
    after_reduce: Hook | None = None,
) -> Any:
    """Makes `optimizer` reduce gradients over the ranks before it applies them.

    Works on the object that is given: saving and loading see the plain optimizer. `init` may come
    later, but before the first training step. Hooks are traced with the step and, where gradients
    are accumulated, run once per update.

    Args:
        optimizer: a keras.optimizers.Optimizer; inside a LossScaleOptimizer the inner one is meant.
        name: what the collectives are named after; by default a number, counting the wrapped
            optimizers in the order in which they are first used. Must be the same on every rank.
        device_dense: device for dense reductions, "" for TensorFlow's choice.
        device_sparse: device for sparse reductions, likewise.
        compression: what is done to gradients on the wire: Compression.none, fp16 or bf16, or a
            tfring.Compressor of your own. Under loss scaling it sees gradients without the scale.
        sparse_as_dense: turn tf.IndexedSlices into dense tensors before reducing; or "auto": the
            ranks choose in every step what moves fewer bytes. Accumulated gradients are dense.
        gradient_predivide_factor: with Average, divides by this before the sum, by the rest after.
        op: Average, Sum, Adasum, Min, Max or Product. tf.IndexedSlices that are not made dense need
            Average or Sum.
        backward_passes_per_step: accumulate so many steps locally, then reduce once and update;
            sets the optimizer's gradient_accumulation_steps. One that is built keeps its state, and
            gradients are accumulated in front of it.
        average_aggregated_gradients: with backward_passes_per_step, use the mean over the passes
            instead of their sum. (gradient_accumulation_steps always uses the mean.)
        num_groups: cut the gradients into this many groups instead of by size.
        groups: a number, as num_groups, or lists of variables to reduce together.
        process_set: the ranks to reduce over. On other ranks gradients stay local.
        scale_local_gradients: divide the gradients of local variables by the size of the process
            set, so that they go with the averaged ones.
        before_reduce: called as hook(gradients, variables) with lists of what this rank is about to
            reduce, without a loss scale and before compression; returns as many gradients.
        after_reduce: likewise with the reduced gradients, before the optimizer clips them.

    Returns:
        `optimizer`, which has a method register_local_var(var) now, for a variable that is not to
        be reduced.

    Raises:
        ValueError: the optimizer is wrapped already, or options contradict each other.
        TypeError: not a Keras 3 optimizer, or another thing that is not what it should be.
    """
    _check_optimizer(optimizer)
    cut = resolve_groups(num_groups, groups)
    rest = (device_dense, device_sparse, before_reduce, after_reduce)
    options = ReduceOptions(
        op, compression, sparse_as_dense, gradient_predivide_factor, cut, process_set, *rest
    )
    local = LocalVariables(scale=scale_local_gradients, process_set=process_set)
    _attach(optimizer, options, local, name, backward_passes_per_step, average_aggregated_gradients)
    return optimizer


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
    before_reduce: Hook | None = None,
    after_reduce: Hook | None = None,
) -> Any:
    """Makes `optimizer` reduce gradients over the ranks, but not those of some layers.

    Args:
        optimizer: as in DistributedOptimizer, like all but `local_layers`.
        name: see there.
        device_dense: see there.
        device_sparse: see there.
        compression: see there.
        sparse_as_dense: see there.
        gradient_predivide_factor: see there.
        op: see there.
        backward_passes_per_step: see there.
        average_aggregated_gradients: see there.
        groups: see there.
        process_set: see there.
        local_layers: a Keras layer, or several, whose trainable weights are this rank's own. They
            may be built later. BroadcastGlobalVariablesCallback takes their weights as
            local_variables.
        scale_local_gradients: see there.
        before_reduce: see there.
        after_reduce: see there.

    Returns:
        `optimizer`.

    Raises:
        ValueError: as there.
        TypeError: something in `local_layers` has no weights, and as there.
    """
    local = LocalVariables(local_layers, scale=scale_local_gradients, process_set=process_set)
    DistributedOptimizer(
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        backward_passes_per_step,
        average_aggregated_gradients,
        groups=groups,
        process_set=process_set,
        before_reduce=before_reduce,
        after_reduce=after_reduce,
    )
    hook = find_hook(optimizer)
    assert hook is not None
    hook.set_local(local)
    return optimizer


def _attach(
    optimizer: Any,
    options: ReduceOptions,
    local: LocalVariables,
    name: str | None,
    passes: int,
    average: bool,
) -> None:
    inner = innermost(optimizer)
    accumulated = accumulation.set_up(inner, passes, average)
    ranks = options.members

    def make_name() -> str:
        if name is not None:
            return f"tfring.optimizer.{name}"
        _used[ranks] += 1
        return f"tfring.optimizer.{_used[ranks] - 1}"

    hook = GradientHook(inner, GradientReducer(options, local), make_name, accumulated)
    hook.attach()
    if optimizer is not inner:
        object.__setattr__(optimizer, "register_local_var", hook.register_local_var)
    loss_scale.install()


def _check_optimizer(optimizer: Any) -> None:
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
