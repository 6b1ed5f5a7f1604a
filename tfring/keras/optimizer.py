"""DistributedOptimizer, for the optimizers of Keras 3, Keras 2 and TensorFlow 1."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from tfring.keras import detect, facts, loss_scale, loss_weights
from tfring.keras.gradient_hook import find_hook, innermost
from tfring.keras.hook import OptimizerHook, steps_taken
from tfring.keras.keras2.hook import Keras2Hook
from tfring.training import tf1_optimizer
from tfring.training.options import LOSS, OptimizerOptions, ReduceOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack


def DistributedOptimizer(
    optimizer: Any, *, resumed: bool = False, **options: Unpack[OptimizerOptions]
) -> Any:
    """Makes `optimizer` reduce gradients over the ranks before it applies them.

    Changes the object itself, so that saving sees a plain optimizer, with the options beside it.
    Call it before the first step. Compression and hooks get gradients without a loss scale; hooks
    are traced with the step and, where gradients are accumulated, run once per update.

    The average is `sum(weight * gradient) / sum(weight)`. weight_by="loss" takes what the loss was
    divided by in Keras' own `train_step`; elsewhere ranks count alike, as with None.

    Args:
        optimizer: a Keras optimizer (of a LossScaleOptimizer the inner one is changed), or a
            tf.compat.v1.train.Optimizer, which then reduces in `compute_gradients`.
        resumed: True for an optimizer that has already trained, for example one that was loaded. Do
            not reuse a tf.function that you traced before wrapping: it would not reduce. Models are
            retraced automatically.
        **options: all by keyword, and all but a few also of DistributedGradientTape:

            - op: Average (the default), Sum, Adasum, Min, Max or Product. Gradients that are
              tf.IndexedSlices and stay sparse need Average or Sum.
            - compression: Compression.none, fp16 or bf16, or a tfring.Compressor of your own.
            - sparse_as_dense: make tf.IndexedSlices dense before reducing. With "auto" the ranks
              choose in each step what moves fewer bytes; the result stays tf.IndexedSlices.
            - gradient_predivide_factor: with Average, divides by this before the sum and by the
              rest of the number of ranks after it.
            - groups: lists of variables to reduce together, or the number of groups to cut the
              gradients into. By default they are cut by size.
            - num_groups: the number of groups; Horovod's name.
            - process_set: the ranks to reduce over. On other ranks gradients stay local.
            - device_dense: device for dense reductions, "" for TensorFlow's choice.
            - device_sparse: device for sparse reductions, "" for TensorFlow's choice.
            - before_reduce: f(gradients, variables) -> gradients; called before the reduction and
              before compression, with what this rank is about to reduce. All ranks must return
              gradients of the same kind.
            - after_reduce: the same, called with the reduced gradients, before the optimizer clips.
            - weight_by: "loss" (the default), None, a number, variable or function of (x, y,
              sample_weight).
            - local_layers: a Keras layer or tf.Module, or several. Their trainable weights are this
              rank's own: gradients stay local, and callbacks do not broadcast or compare them. They
              may be built later.
            - scale_local_gradients: divide local gradients by the number of ranks, so that one
              learning rate suits them and the averaged ones. True by default.

            For optimizers only:

            - name: a part of the collectives' names, the same on every rank. By default the
              optimizer's number among the wrapped ones, in the order in which they are first used.
            - backward_passes_per_step: the number of passes that are accumulated on this rank
              before one reduction and update.
            - average_aggregated_gradients: use the mean over these passes instead of their sum.
              Keras' own gradient_accumulation_steps always uses the mean.
            - shard_states: each rank keeps 1/N of the optimizer's states, such as momentums, and
              updates 1/N of each weight; the weights are the same. N is the size of process_set.
              For all optimizers of Keras 3, but no subclasses. Save the model with hvd.save_model.
            - use_locking: lock variables during updates; optimizers of TensorFlow 1 only.

    Returns:
        `optimizer`, with a method register_local_var(var) for a variable not to be reduced.

    Raises:
        ValueError: it is wrapped or has taken steps already, or options contradict each other.
        TypeError: this is no optimizer, there is no such option, or it has a wrong type.
        NotImplementedError: use_locking=True for an optimizer of Keras, or shard_states=True where
            that cannot be had.
    """
    given = {"weight_by": LOSS, **options}
    read = ReduceOptions.read("DistributedOptimizer", given, OptimizerOptions)
    return wrap(optimizer, read, resumed)


PartialDistributedOptimizer = DistributedOptimizer
"""Horovod's name for an optimizer with `local_layers`."""


def wrap(optimizer: Any, options: ReduceOptions, resumed: bool) -> Any:
    """Does the work of DistributedOptimizer; returns `optimizer`."""
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        _refuse_shards(options, "one of TensorFlow 1")
        _refuse_weight(options, "one of TensorFlow 1")
        return tf1_optimizer.wrap(optimizer, options)
    if options.use_locking:
        raise NotImplementedError("use_locking=True: Keras optimizers have no locks; omit it")
    keras2 = detect.is_optimizer(optimizer)
    if keras2:
        _refuse_shards(options, "an optimizer of Keras 2")
        _refuse_weight(options, "an optimizer of Keras 2")
    else:
        _refuse_other_kinds(optimizer)
    inner = innermost(optimizer)
    _refuse_wrapped(optimizer, inner)
    if resumed:
        _trace_again(optimizer)
    else:
        _refuse_used(inner)
    _check_passes(inner, options.backward_passes_per_step)
    hook = Keras2Hook(inner, options) if keras2 else OptimizerHook(inner, options)
    hook.attach()
    if optimizer is not inner:
        object.__setattr__(optimizer, "register_local_var", hook.register_local_var)
    if not keras2:
        loss_scale.install()
        loss_weights.install()
    return optimizer


def _refuse_weight(options: ReduceOptions, what: str) -> None:
    """Raises NotImplementedError for a weight_by of which an optimizer would know nothing."""
    given = options.weight_by
    if given is not None and not isinstance(given, str):
        raise NotImplementedError(
            f"weight_by={given!r} needs an optimizer of Keras 3, and this is {what}.\n"
            "Use DistributedGradientTape(..., weight_by=...) and an optimizer that is not wrapped."
        )


def _refuse_shards(options: ReduceOptions, what: str) -> None:
    if options.shard_states:
        raise NotImplementedError(
            f"shard_states=True needs an optimizer of Keras 3, and this is {what}"
        )


def _refuse_used(optimizer: Any) -> None:
    """Raises ValueError if the optimizer has taken steps: functions traced then do not reduce.

    A loaded optimizer looks the same, so the caller has to say that it was loaded.
    """
    # A legacy optimizer of Keras 2 makes its counter when it is first used.
    new = detect.is_optimizer(optimizer) and getattr(optimizer, "_iterations", None) is None
    steps = steps_taken(optimizer) if tf.executing_eagerly() and not new else 0
    if steps > 0:
        raise ValueError(
            f"optimizer {facts.name_of(optimizer)!r} has taken {steps} steps already, and a step "
            "that was traced before would go on without reducing gradients.\nWrap it before its "
            "first step. Pass resumed=True if it was loaded (load_model does), or if you compile "
            "the model again and make your tf.functions anew."
        )


def _trace_again(optimizer: Any) -> None:
    """Makes models that have this optimizer trace their training step anew.

    What was traced before would go on without reducing. An optimizer does not know its model.
    """
    kind = detect.model_class() if detect.is_optimizer(optimizer) else keras.Model
    for each in gc.get_objects():
        if issubclass(type(each), kind):
            its = vars(each).get("optimizer")
            if its is not None and innermost(its) is innermost(optimizer):
                each.train_function = None


def _check_passes(inner: Any, passes: int) -> None:
    """Checks backward_passes_per_step.

    Keras' own gradient_accumulation_steps takes the mean of the passes. A saved model would have
    it, and would mean something else than the sum of the passes.
    """
    if passes < 1:
        raise ValueError(f"backward_passes_per_step must be at least 1, not {passes}")
    if passes == 1:
        return
    if steps := getattr(inner, "gradient_accumulation_steps", None):
        raise ValueError(
            f"optimizer {inner.name!r} has gradient_accumulation_steps={steps} already.\nLeave out "
            f"backward_passes_per_step={passes}."
        )
    if hasattr(inner, "optimizers"):
        raise NotImplementedError("backward_passes_per_step cannot be used with a MultiOptimizer")


def _refuse_other_kinds(optimizer: Any) -> None:
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            "DistributedOptimizer needs a Keras optimizer object, keras.optimizers.SGD(...), "
            f"not {optimizer!r} of type {type(optimizer).__module__}.{type(optimizer).__name__}"
        )


def _refuse_wrapped(optimizer: Any, inner: Any) -> None:
    hook, name = find_hook(optimizer), facts.name_of(optimizer)
    if hook is not None and hook.optimizer is inner:
        raise ValueError(
            f"optimizer {name!r} is wrapped by DistributedOptimizer already; wrap it once"
        )
    if hook is not None:
        raise ValueError(
            f"optimizer {name!r} holds {facts.name_of(hook.optimizer)!r}, which is wrapped by "
            "DistributedOptimizer already, so gradients would be reduced twice.\n"
            "Wrap the outermost optimizer alone."
        )
    for part in getattr(inner, "optimizers", ()):
        if find_hook(part) is not None:
            raise ValueError(
                f"optimizer {part.name!r} inside the MultiOptimizer is wrapped already; wrap the "
                "MultiOptimizer alone"
            )
