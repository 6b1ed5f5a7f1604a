"""DistributedOptimizer for the optimizers of TensorFlow 1, tf.compat.v1.train.Optimizer.

Such an optimizer computes gradients in `compute_gradients` and applies them in `apply_gradients`;
`minimize` calls both. After wrapping, compute_gradients returns reduced gradients. A script may
change them, for example clip them, before it applies them. As with Keras optimizers, wrapping
changes the user's own object: the two methods become instance attributes.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfring.training import double_reduction
from tfring.training.accumulation import LocalGradientAggregationHelper
from tfring.training.options import ReduceOptions
from tfring.training.ordinals import Ordinals
from tfring.training.reducer import GradientReducer

_ATTRIBUTE = "_tfring_hook"
_optimizers = Ordinals()


def wrap(optimizer: Any, options: ReduceOptions) -> Any:
    """Makes a tf.compat.v1.train.Optimizer reduce gradients; returns it.

    Args:
        optimizer: the optimizer.
        options: how to reduce; `use_locking` locks variables while they are updated.

    Raises:
        ValueError: it is wrapped already, or backward_passes_per_step is not positive.
    """
    if hasattr(optimizer, _ATTRIBUTE):
        raise ValueError(
            f"optimizer {optimizer.get_name()!r} is already wrapped by DistributedOptimizer. Wrap "
            "it once"
        )
    hook = _TF1OptimizerHook(optimizer, options)
    if options.use_locking:
        optimizer._use_locking = True
    setattr(optimizer, _ATTRIBUTE, hook)
    optimizer.compute_gradients = hook.compute_gradients
    optimizer.apply_gradients = hook.apply_gradients
    optimizer.register_local_var = hook.register_local_var
    return optimizer


class _TF1OptimizerHook:
    """The methods that are attached to one optimizer, and their state.

    Used by the thread that builds the graph or, in eager mode, runs the steps.
    """

    def __init__(self, optimizer: Any, options: ReduceOptions) -> None:
        self._given_name = options.name
        self._key = object()  # this hook's key in the ordinals
        self._optimizer_name = optimizer.get_name()
        self._compute = optimizer.compute_gradients
        self._apply = optimizer.apply_gradients
        self._reducer = GradientReducer(options)
        self.register_local_var = self._reducer.local.register
        self._computed_in_eager = False
        helper = LocalGradientAggregationHelper(
            options.backward_passes_per_step,
            self._reduce,
            average_aggregated_gradients=options.average_aggregated_gradients,
        )
        self._helper = helper if options.backward_passes_per_step > 1 else None

    def _reduce(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        return self._reducer.reduce(gradients, variables, name=self._name())

    def _name(self) -> str:
        """The name, made when first needed: a rank may never use an optimizer that it wrapped."""
        if self._given_name is not None:
            return f"tfring.tf1_optimizer.{self._given_name}"
        group = self._reducer.options.members
        return f"tfring.tf1_optimizer.{_optimizers.number(self._key, group)}"

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Replaces `optimizer.compute_gradients`; returns reduced gradients."""
        pairs = self._compute(*args, **kwargs)
        gradients, variables = [g for g, _ in pairs], [v for _, v in pairs]
        if self._helper is not None:
            gradients = self._helper.compute_gradients(gradients, variables)
        else:
            gradients = self._reduce(gradients, variables)
        self._computed_in_eager = tf.executing_eagerly()
        return list(zip(gradients, variables, strict=True))

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None
    ) -> Any:
        """Replaces `optimizer.apply_gradients`; with accumulation, only the last pass applies."""
        pairs = list(grads_and_vars)
        self._check_reduced([g for g, _ in pairs], [v for _, v in pairs])
        if self._helper is None:
            return self._apply(pairs, global_step=global_step, name=name)
        done = self._helper.apply_gradients(
            lambda: self._apply(pairs, global_step=global_step, name=name),
            global_step=global_step,
        )
        return done if tf.executing_eagerly() else tf.group(done)

    def _check_reduced(self, gradients: list[Any], variables: list[Any]) -> None:
        """Raises RuntimeError if the gradients do not come from compute_gradients."""
        local = self._reducer.local.positions(variables)
        shared = [g for i, g in enumerate(gradients) if g is not None and i not in local]
        if not shared or not self._reducer.options.included:
            return
        symbolic = double_reduction.symbolic_parts(shared)
        if symbolic:
            reduced = double_reduction.comes_from(symbolic, "tfring.")
        else:
            marked = any(double_reduction.is_marked(g) for g in shared)
            reduced, self._computed_in_eager = marked or self._computed_in_eager, False
        if not reduced:
            raise RuntimeError(
                f"optimizer {self._optimizer_name!r} is about to apply gradients that were not "
                "reduced over the ranks. Get them from optimizer.compute_gradients, which "
                "reduces them, or from a DistributedGradientTape"
            )
