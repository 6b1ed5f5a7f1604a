"""DistributedOptimizer for the optimizers of TensorFlow 1, tf.compat.v1.train.Optimizer.

`compute_gradients`, which `minimize` calls, returns reduced gradients; a script may change them, to
clip them say, and applies them. As with Keras optimizers the user's own object is changed.
"""

from __future__ import annotations

import collections
from typing import Any

import tensorflow as tf

from tfring.training import double_reduction
from tfring.training.accumulation import LocalGradientAggregationHelper
from tfring.training.local_variables import LocalVariables
from tfring.training.options import ReduceOptions, resolve_groups
from tfring.training.reducer import GradientReducer

_ATTRIBUTE = "_tfring_hook"
# By process set: its members may wrap optimizers that the other ranks do not have.
_wrapped: collections.Counter[Any] = collections.Counter()


def wrap(
    optimizer: Any,
    *,
    name: str | None,
    use_locking: bool,
    backward_passes_per_step: int,
    average_aggregated_gradients: bool,
    num_groups: int,
    groups: Any,
    scale_local_gradients: bool,
    **options: Any,
) -> Any:
    """Makes a tf.compat.v1.train.Optimizer reduce gradients; returns it.

    Args:
        optimizer: the optimizer.
        name: as in DistributedOptimizer, like all the others.
        use_locking: lock variables while they are updated.
        backward_passes_per_step: see there.
        average_aggregated_gradients: see there.
        num_groups: see there.
        groups: see there.
        scale_local_gradients: see there.
        **options: the rest, which are those of ReduceOptions.

    Raises:
        ValueError: it is wrapped already, or options contradict each other.
    """
    if hasattr(optimizer, _ATTRIBUTE):
        raise ValueError(
            f"optimizer {optimizer.get_name()!r} is wrapped by DistributedOptimizer already; "
            "wrap it once"
        )
    chosen = ReduceOptions(groups=resolve_groups(num_groups, groups), **options)
    ranks = chosen.members
    base = f"tfring.legacy_optimizer.{_wrapped[ranks] if name is None else name}"
    hook = _LegacyHook(
        optimizer,
        chosen,
        base,
        backward_passes_per_step,
        average_aggregated_gradients,
        scale_local_gradients,
    )
    _wrapped[ranks] += 1
    if use_locking:
        optimizer._use_locking = True
    setattr(optimizer, _ATTRIBUTE, hook)
    optimizer.compute_gradients = hook.compute_gradients
    optimizer.apply_gradients = hook.apply_gradients
    optimizer.register_local_var = hook.local.register
    return optimizer


class _LegacyHook:
    """What is attached to one optimizer; used by the thread that builds the graph."""

    def __init__(
        self,
        optimizer: Any,
        options: ReduceOptions,
        name: str,
        passes: int,
        average: bool,
        scale_local: bool,
    ) -> None:
        self._name = name
        self._optimizer_name = optimizer.get_name()
        self._compute = optimizer.compute_gradients
        self._apply = optimizer.apply_gradients
        self.local = LocalVariables(scale=scale_local, process_set=options.process_set)
        self._reducer = GradientReducer(options, self.local)
        self._computed_in_eager = False
        self._helper: LocalGradientAggregationHelper | None = None
        helper = LocalGradientAggregationHelper(
            passes, self._reduce, average_aggregated_gradients=average, name=name
        )
        if passes > 1:
            self._helper = helper

    def _reduce(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        return self._reducer.reduce(gradients, variables, name=self._name)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Stands in for `optimizer.compute_gradients`."""
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
        """Stands in for `optimizer.apply_gradients`."""
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
        """Raises RuntimeError if the gradients come from elsewhere than compute_gradients."""
        local = self.local.positions(variables)
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
                "reduced over the ranks: get them from optimizer.compute_gradients, which does "
                "that, or from a DistributedGradientTape"
            )
