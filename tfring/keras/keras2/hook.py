"""Keras2Hook: attached to a user's own Keras 2 optimizer, so that it reduces gradients.

Both kinds of Keras 2 optimizers have a method that sums gradients over the replicas of a
tf.distribute strategy: `aggregate_gradients`, in legacy optimizers `_aggregate_gradients`. Their
`apply_gradients` calls it, unless it is told that the gradients are aggregated already. A
LossScaleOptimizer calls it after it has divided the gradients by the loss scale and before it looks
for inf and nan. The hook replaces it, so every rank sees the same inf. It also replaces

- `apply_gradients`: with backward_passes_per_step it accumulates; gradients that the caller calls
  aggregated have to come from a reduction;
- `_internal_apply_gradients`, legacy `_distributed_apply`, which update the weights: they raise if
  the gradients have not been reduced;
- `get_gradients` of legacy optimizers, which builds gradients in a TF1 graph, and their
  `_compute_gradients`: both return reduced gradients, which the program may clip and apply.

An optimizer made from the configuration of another is plain, which the callbacks refuse. A deepcopy
is wrapped.
"""

from __future__ import annotations

import copy
import sys
from types import FrameType
from typing import Any

import tensorflow as tf

from tfring.keras import detect, facts
from tfring.keras.gradient_hook import GradientHook
from tfring.training import double_reduction, gate


class Keras2Hook(GradientHook):
    """Reduces the gradients that pass through one optimizer of Keras 2."""

    prefix = "tfring.keras2_optimizer"
    finite_here_only = False  # all ranks look for inf and nan in the same gradients

    def attach(self) -> None:
        """Puts the hook in place."""
        methods: dict[str, Any] = {
            "aggregate_gradients": self.aggregate_gradients,
            "_aggregate_gradients": self.aggregate_gradients,
        }
        if detect.is_legacy(self.optimizer):
            methods["apply_gradients"] = self.apply_legacy
            methods["_distributed_apply"] = self.distributed_apply
            methods["get_gradients"] = self.get_gradients
            methods["_compute_gradients"] = self.compute_gradients
        else:
            methods["apply_gradients"] = self.apply_new
            methods["_internal_apply_gradients"] = self.internal_apply_gradients
        self._put(methods)

    def __deepcopy__(self, memo: dict[int, Any]) -> Keras2Hook:
        """Copies the hook, and its optimizer, for `copy.deepcopy`."""
        copied = Keras2Hook(copy.deepcopy(self.optimizer, memo), self.options, self)
        memo[id(self)] = copied
        return copied

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def aggregate_gradients(self, grads_and_vars: Any) -> list[tuple[Any, Any]]:
        """Replaces `aggregate_gradients`; returns pairs with reduced gradients."""
        pairs = list(grads_and_vars)
        if self.accumulates:
            raise NotImplementedError(
                "backward_passes_per_step cannot be used with a LossScaleOptimizer of Keras 2 "
                "(mixed_float16), nor with gradients that are aggregated apart from "
                "apply_gradients: leave it out, or use Keras 3"
            )
        gradients, variables = [g for g, _ in pairs], [v for _, v in pairs]
        left = self._early.left(gradients, variables)
        if left:
            # Outside of apply_gradients, a LossScaleOptimizer calls.
            rest = self._reduce([pairs[i] for i in left], loss_scaled=not self._calls)
            for i, pair in zip(left, rest, strict=True):
                pairs[i] = pair
        if self._calls:
            self._calls[-1] = True
            return pairs
        return pairs if _keras_calls() else self._marked(pairs)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def get_gradients(self, loss: Any, params: Any) -> list[Any]:
        """Replaces `get_gradients` of legacy optimizers; returns reduced gradients."""
        variables = tf.nest.flatten(params)
        gradients = self._original("get_gradients")(loss, variables)
        pairs = self._reduce_early(list(zip(gradients, variables, strict=True)))
        return [gradient for gradient, _ in pairs]

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Replaces `_compute_gradients` of legacy optimizers; returns pairs, reduced."""
        return self._reduce_early(list(self._original("_compute_gradients")(*args, **kwargs)))

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def apply_new(
        self,
        grads_and_vars: Any,
        name: str | None = None,
        skip_gradients_aggregation: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Replaces `apply_gradients` of an optimizer that is not a legacy one."""
        wanted = kwargs.pop("experimental_aggregate_gradients", True)
        return self._apply(grads_and_vars, name, skip_gradients_aggregation or not wanted)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def apply_legacy(
        self,
        grads_and_vars: Any,
        name: str | None = None,
        experimental_aggregate_gradients: bool = True,
    ) -> Any:
        """Replaces `apply_gradients` of a legacy optimizer."""
        return self._apply(grads_and_vars, name, not experimental_aggregate_gradients)

    def internal_apply_gradients(self, grads_and_vars: Any) -> Any:
        """Replaces the method that updates the weights."""
        self._check_reduced()
        pairs = list(grads_and_vars)
        with gate.closed_until(g for g, _ in pairs):
            return self._original("_internal_apply_gradients")(pairs)

    def distributed_apply(self, distribution: Any, grads_and_vars: Any, **kwargs: Any) -> Any:
        """Replaces the method of legacy optimizers that updates the weights."""
        self._check_reduced()
        pairs = list(grads_and_vars)
        with gate.closed_until(g for g, _ in pairs):
            return self._original("_distributed_apply")(distribution, pairs, **kwargs)

    def _original(self, name: str) -> Any:
        return getattr(type(self.optimizer), name).__get__(self.optimizer)

    def _apply(self, grads_and_vars: Any, name: str | None, aggregated: bool) -> Any:
        """Applies gradients; `aggregated`: the caller says that they have been reduced."""
        pairs = list(grads_and_vars)
        self._traced = self._traced or not tf.executing_eagerly()
        if aggregated:
            aggregated = self._given_reduced(pairs)
        elif self.accumulates:
            return self._apply_in_last_pass(pairs, name)
        with self._call(aggregated):
            return self._apply_plainly(pairs, name, aggregated)

    def _apply_plainly(self, pairs: Any, name: str | None, aggregated: bool) -> Any:
        apply = self._original("apply_gradients")
        return apply(pairs, name=name, experimental_aggregate_gradients=not aggregated)

    def _apply_in_last_pass(self, pairs: list[Any], name: str | None) -> Any:
        optimizer = self.optimizer
        if detect.is_legacy(optimizer):
            pairs = list(optimizer._transform_unaggregated_gradients(pairs))
        gradients, variables = [g for g, _ in pairs], [v for _, v in pairs]
        self._refuse_reduced(gradients, variables)
        with tf.init_scope():  # what an update in a branch could not make
            facts.build_for(optimizer, variables)
        reduced = self._helper(variables).compute_gradients(gradients, variables)

        def update() -> Any:
            with self._call(True):
                return self._apply_plainly(zip(reduced, variables, strict=True), name, True)

        return self._helper(variables).apply_gradients(update)

    def _reduce_early(self, pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """Reduces gradients that a program gets before it applies them.

        It does not where gradients are accumulated: `apply_gradients` reduces their sum. It does
        not for Keras itself either: `minimize` and LossScaleOptimizer apply the gradients, the
        latter without the loss scale, and that reduces them.
        """
        if self.accumulates or _keras_calls():
            return pairs
        return self._marked(self._reduce(pairs, early=True))

    def _marked(self, pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        variables = [v for _, v in pairs]
        marked = self._early.mark([g for g, _ in pairs], variables)
        return list(zip(marked, variables, strict=True))

    def _reduce(
        self, pairs: list[Any], loss_scaled: bool = False, early: bool = False
    ) -> list[tuple[Any, Any]]:
        gradients, variables = [g for g, _ in pairs], [v for _, v in pairs]
        self._refuse_reduced(gradients, variables)
        name = self._call_name(variables, early)
        reduced = self._reducer.reduce(gradients, variables, name=name, loss_scaled=loss_scaled)
        return list(zip(reduced, variables, strict=True))

    def _given_reduced(self, pairs: list[Any]) -> bool:
        """Returns whether gradients that are called aggregated are those that were reduced.

        Those that this optimizer reduced early and that were changed since are to be reduced again.

        Raises:
            RuntimeError: there was no reduction.
        """
        local = self._reducer.local.positions([v for _, v in pairs])
        shared = [(g, v) for i, (g, v) in enumerate(pairs) if g is not None and i not in local]
        unmarked = [(g, v) for g, v in shared if not double_reduction.is_marked(g)]
        if not unmarked or not self._reducer.options.included:
            return True
        if self._early.any_of(v for _, v in unmarked):
            return False
        parts = [double_reduction.symbolic_parts([g]) for g, _ in unmarked]
        if not all(double_reduction.comes_from(part, "tfring.") for part in parts):
            raise RuntimeError(
                f"{type(self.optimizer).__name__}.apply_gradients was told that its gradients are "
                "aggregated (experimental_aggregate_gradients=False or "
                "skip_gradients_aggregation=True), and they were not reduced over the ranks: leave "
                "that argument out, or get them from this optimizer's aggregate_gradients or from "
                "a DistributedGradientTape"
            )
        return True

    def _check_reduced(self) -> None:
        if not self._calls or not self._calls[-1]:
            raise RuntimeError(
                f"optimizer {type(self.optimizer).__name__} is about to update weights with "
                "gradients that were not reduced over the ranks: something called another "
                "`apply_gradients` than the one that DistributedOptimizer attached. Call "
                "optimizer.apply_gradients(...) or optimizer.minimize(...) of the wrapped object"
            )


def _keras_calls() -> bool:
    """Returns whether Keras calls tfring, and not the program."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _package_of(frame) in ("tfring", "tensorflow"):
        frame = frame.f_back
    return _package_of(frame) == "tf_keras"


def _package_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
