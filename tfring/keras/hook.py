"""OptimizerHook: attached to a user's own Keras optimizer, so that it reduces gradients.

A training step reaches the optimizer by `optimizer.apply(gradients, variables)`. Inside, Keras
accumulates gradients if gradient_accumulation_steps is set, clips them in `_clip_gradients`, and
updates the weights in `_backend_update_step`. The hook replaces these three methods:

- `apply` reduces the gradients before anything looks at them, unless they are accumulated.
- `_clip_gradients` reduces accumulated gradients: Keras calls it once per real update, with the
  mean over the passes, whereas `apply` runs in every pass. (Keras before 3.5 calls it in every
  pass, before it accumulates. So there every pass is reduced, and clipped as Keras does there.)
- `_backend_update_step` raises if the gradients have been reduced in neither place.

It also replaces `scale_loss`, which `train_step` calls before it differentiates: there the
gradients of collectives learn how much this rank counts.

A MultiOptimizer passes the gradients on to its parts, so there it is always `apply` that reduces,
and accumulation inside it costs one reduction per pass. Gradients of `overwrite_with_gradient`
variables (float8 scales) become the variable's next value without an update step. They are reduced
by Max, as Keras itself accumulates them, so that every rank has the same next value.

A copy made by saving, pickling or from_config is a plain optimizer again, which the callbacks
refuse; a deepcopy is wrapped like its original.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfring.keras import facts, loss_weights
from tfring.keras.gradient_hook import GradientHook, key_of
from tfring.keras.state_shards import StateShards
from tfring.ops import backward, reduce_ops
from tfring.runtime import memory, process_sets, topology
from tfring.runtime.keras_version import replaceable
from tfring.training import gate, weights
from tfring.training.options import ReduceOptions

_WHAT = "tfring.keras.DistributedOptimizer"


def steps_taken(optimizer: Any) -> int:
    """Returns how often an optimizer has been given gradients; needs eager mode."""
    return int(facts.number(facts.passes_of(optimizer)))


@dataclasses.dataclass
class _Call:
    """One call of `apply` that is under way."""

    variables: list[Any]
    live: list[int]  # positions whose gradient reaches `_clip_gradients`, in its order
    reduced: bool


class OptimizerHook(GradientHook):
    """Reduces the gradients that pass through one optimizer of Keras 3."""

    prefix = "tfring.optimizer"

    def __init__(
        self, optimizer: Any, options: ReduceOptions, original: GradientHook | None = None
    ) -> None:
        super().__init__(optimizer, options, original)
        self._pass_weights: dict[tuple[Any, ...], weights.PassWeights] = {}
        self._outer_reduced = False
        self._noted: tuple[Any, ...] = ()  # of what `_note_memory` has told
        self._apply = replaceable(optimizer, "apply", _WHAT)
        self._clip_gradients = replaceable(optimizer, "_clip_gradients", _WHAT)
        self._update_step = replaceable(optimizer, "_backend_update_step", _WHAT)
        self._scale_loss = replaceable(optimizer, "scale_loss", _WHAT)
        if options.shards:
            self.shards = StateShards(
                optimizer, options, self._reducer.local, lambda: f"{self.name}.shards"
            )

    def attach(self) -> None:
        """Puts the hook in place."""
        self._put(
            {
                "apply": self.apply,
                "_clip_gradients": self.clip_gradients,
                "_backend_update_step": self.update_step,
                "__deepcopy__": self.copy_optimizer,
                "scale_loss": lambda loss: self.announced(self._scale_loss(loss)),
                **({} if self.shards is None else self.shards.methods()),
            }
        )

    def copy_optimizer(self, memo: dict[int, Any]) -> Any:
        """Copies the optimizer, for `copy.deepcopy`; the copy reduces, too.

        NotImplementedError: it is built with shard_states=True.
        """
        if self.shards is not None and self.optimizer.built:
            raise NotImplementedError(
                f"optimizer {self.optimizer.name!r} has a part of its states (shard_states=True) "
                "and cannot be copied.\nMake a new one from optimizer.get_config()."
            )
        object.__delattr__(self.optimizer, "__deepcopy__")
        try:
            copied = copy.deepcopy(self.optimizer, memo)
        finally:
            object.__setattr__(self.optimizer, "__deepcopy__", self.copy_optimizer)
        OptimizerHook(copied, self.options, self).attach()
        return copied

    def register_local_var(self, var: Any) -> None:
        """Makes the gradient of a variable stay this rank's own; see GradientHook."""
        if self.shards is not None:
            self.shards.refuse_cut(var)
        super().register_local_var(var)

    @property
    def counter(self) -> Any:
        """The number of accumulated passes; Horovod's optimizers have it in `_agg_helper`."""
        steps = self.optimizer.gradient_accumulation_steps
        if steps:
            return tf.convert_to_tensor(facts.passes_of(self.optimizer)) % steps
        return super().counter

    @property
    def passes(self) -> int:
        """In how many passes the gradients of an update are accumulated; 1: they are not."""
        return int(
            self.optimizer.gradient_accumulation_steps or self.options.backward_passes_per_step
        )

    @property
    def finite_here_only(self) -> bool:
        """Whether ranks may look for inf and nan in different gradients."""
        return self.accumulates or bool(self._reducer.local) or self.shards is not None

    @property
    def in_reduced_call(self) -> bool:
        """Whether a LossScaleOptimizer around this one has reduced the gradients already."""
        return self._outer_reduced

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Replaces `optimizer.apply`."""
        grads = list(grads)
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)  # may be a generator
        variables = self._variables_of(grads, trainable_variables)
        if not variables:
            return self._apply(grads, trainable_variables)
        self._traced = self._traced or not tf.executing_eagerly()
        if self.options.backward_passes_per_step > 1:
            return self._apply_in_last_pass(grads, variables)
        if self.shards is not None:
            return self._apply_shards(grads, variables, self.shards)
        if self._outer_reduced:
            reduced, done = grads, True
        elif self.accumulates:
            self._refuse_reduced(grads, variables)
            reduced, done = self._reduce_overwrites(grads, variables), False
        else:
            reduced, done = self._reduce_left(grads, variables), True
        live = _live(grads, variables)
        closed = gate.closed_until(reduced if done and not self._outer_reduced else ())
        with self._call(_Call(variables, live, done)) as call, closed:
            result = self._apply(reduced, trainable_variables)
        self._check_reduced(call)
        return result

    def _apply_shards(self, grads: list[Any], variables: list[Any], shards: StateShards) -> Any:
        """Updates this rank's parts, and gathers those of all ranks."""
        if not self.optimizer.built:  # no gradient may be left to reduce
            self.optimizer.build(variables)
        with tf.control_dependencies(shards.check_ranks()):
            if not self._outer_reduced:
                grads = self._reduce_left(grads, variables)
            live = _live(grads, variables)
            closed = gate.closed_until(() if self._outer_reduced else grads)
            with self._call(_Call(variables, live, True)), closed:
                shards.refresh(variables)
                result = self._apply(grads, shards.parts_of(variables))
            shards.gather(variables, self._call_name(variables))
            shards.constrain(variables)
        return result

    def _apply_in_last_pass(self, grads: list[Any], variables: list[Any]) -> Any:
        """Accumulates for backward_passes_per_step."""
        if any(_overwrites(v) for v in variables):
            raise NotImplementedError(
                "backward_passes_per_step cannot be used with overwrite_with_gradient variables "
                "(scales of float8).\nUse gradient_accumulation_steps of Keras, which takes "
                "the mean of the passes."
            )
        self._refuse_reduced(grads, variables)
        with tf.init_scope():  # an update in a branch could not make its state
            if not self.optimizer.built:
                self.optimizer.build(variables)
        grads, passes = self._weigh_pass(grads, variables)
        helper = self._helper(variables, lambda: None if passes is None else passes.take())
        reduced = helper.compute_gradients(grads, variables)
        live = [i for i, gradient in enumerate(reduced) if gradient is not None]

        def update() -> Any:
            with self._call(_Call(variables, live, True)):
                return self._apply(reduced, variables)

        with gate.closed_until(reduced):
            return helper.apply_gradients(update)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def clip_gradients(self, grads: Any) -> Any:
        """Replaces `optimizer._clip_gradients`; reduces first what was accumulated."""
        call = self._calls[-1] if self._calls else None
        if call is None:
            return self._clip_gradients(grads)
        if call.reduced:
            return self._clip_apart(list(grads), call)
        if len(grads) != len(call.live):
            raise RuntimeError(
                f"optimizer {self.optimizer.name!r} clips {len(grads)} gradients where "
                f"{len(call.live)} were accumulated; tfring cannot tell which is which"
            )
        full: list[Any] = [None] * len(call.variables)
        for position, gradient in zip(call.live, grads, strict=True):
            full[position] = gradient
        reduced = self._reducer.reduce(
            full,
            call.variables,
            name=self._call_name(call.variables),
        )
        call.reduced = True
        return self._clip_apart([reduced[position] for position in call.live], call)

    def _clip_apart(self, grads: list[Any], call: _Call) -> list[Any]:
        """Clips shared and local gradients apart.

        A norm over both would differ between ranks, and so would the factor for shared gradients.
        """
        variables = [call.variables[position] for position in call.live]
        local = self._reducer.local.positions(variables)
        by_norm = self.optimizer.clipnorm or self.optimizer.global_clipnorm
        sharded = self.shards is not None and bool(by_norm)
        if (not local and not sharded) or len(grads) != len(variables):
            return list(self._clip_gradients(grads))
        clipped = list(grads)
        for positions in (sorted(set(range(len(grads))) - local), sorted(local)):
            mine = [grads[i] for i in positions]
            if mine and sharded and positions[0] not in local:
                assert self.shards is not None
                theirs = [variables[i] for i in positions]
                part = self.shards.clip(mine, theirs, self._call_name(variables))
            else:
                part = self._clip_gradients(mine) if mine else []
            for i, gradient in zip(positions, part, strict=True):
                clipped[i] = gradient
        return clipped

    def update_step(self, grads: Any, trainable_variables: Any, learning_rate: Any) -> Any:
        """Replaces `optimizer._backend_update_step`; refuses gradients that were not reduced."""
        if not self._calls or not self._calls[-1].reduced:
            raise RuntimeError(
                f"optimizer {self.optimizer.name!r} ({type(self.optimizer).__name__}) is about to "
                "update weights with gradients that were not reduced over the ranks: something "
                "called another `apply` than the one that DistributedOptimizer attached. Call "
                "optimizer.apply(...) or optimizer.apply_gradients(...) of the wrapped object"
            )
        return self._update_step(grads, trainable_variables, learning_rate)

    def reduce(
        self,
        grads: Sequence[Any],
        variables: Sequence[Any],
        unscale: Any,
        *,
        early: bool = False,
    ) -> list[Any]:
        """Reduces one step's gradients, one per variable.

        Args:
            grads: tf.Tensor, tf.IndexedSlices or None.
            variables: their variables.
            unscale: the loss scale in them, or None.
            early: the program gets them. `apply` may reduce those of these variables again in the
                same step, by other collectives.
        """
        self._refuse_reduced(grads, variables)
        plain = [None if _overwrites(v) else g for g, v in zip(grads, variables, strict=True)]
        name = self._call_name(variables, early)
        shards = None if early else self.shards
        if shards is not None and not self.optimizer.built:
            self.optimizer.build(list(variables))
        reduced = self._reducer.reduce(
            plain,
            variables,
            name=name,
            unscale=unscale,
            weight=self._weight(grads, variables, name),
            shards=None if shards is None else shards.of_gradients,
        )
        if shards is not None and shards.of_gradients is None:
            reduced = shards.cut(reduced, list(variables), [])
        overwrites = self._reduce_overwrites(grads, variables)
        return [
            o if _overwrites(v) else r
            for r, o, v in zip(reduced, overwrites, variables, strict=True)
        ]

    def reduce_early(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Reduces gradients that the program changes before it applies them.

        Where gradients are accumulated it returns them as they are: `apply` reduces their sum.
        """
        if self.accumulates:
            return list(grads)
        scale = self.optimizer.loss_scale_factor
        reduced = self.reduce(grads, variables, scale, early=True)
        return self._early.mark(reduced, variables)

    def _reduce_left(self, grads: list[Any], variables: list[Any]) -> list[Any]:
        """Reduces the gradients that `reduce_early` has not returned."""
        left = self._early.left(grads, variables)
        reduced = list(grads) if self.shards is None else self.shards.cut(grads, variables, left)
        if left:
            unscale = self.optimizer.loss_scale_factor
            rest = self.reduce([grads[i] for i in left], [variables[i] for i in left], unscale)
            for i, gradient in zip(left, rest, strict=True):
                reduced[i] = gradient
        return reduced

    def agree_finite(self, finite: Any) -> Any:
        """Returns, as a bool tensor, whether `finite` is true on every rank."""
        flag = tf.cast(finite, tf.int32)
        reducer = self._reducer.exact(reduce_ops.Min)
        (agreed,) = reducer.reduce([flag], [flag], name=f"{self.name}.finite")
        return tf.cast(agreed, tf.bool)

    def accumulated(self) -> list[Any]:
        """Returns the variables in which tfring itself accumulates gradients."""
        passes = [v for each in self._pass_weights.values() for v in each.variables]
        return [*super().accumulated(), *passes]

    @contextlib.contextmanager
    def outer_reduced(self) -> Iterator[None]:
        """Tells the hook that a LossScaleOptimizer applies gradients that it has reduced."""
        before, self._outer_reduced = self._outer_reduced, True
        try:
            yield
        finally:
            self._outer_reduced = before

    @contextlib.contextmanager
    def _call(self, call: Any) -> Iterator[Any]:
        with super()._call(call):
            yield call
        self._note_memory()

    def _note_memory(self) -> None:
        """Tells the record what the optimizer holds, if that has changed."""
        states = [*facts.variables_of(self.optimizer), *self.accumulated()]
        now = (len(states), None if self.shards is None else self.shards.divided)
        if now == self._noted:
            return
        self._noted = now
        trained = facts.trained_by(self.optimizer, [])
        parts = [] if self.shards is None else self.shards.parts_of(trained)
        trained += [part for part in parts if facts.whole_of(part) is not part]
        sums = (sum(map(facts.bytes_of, variables)) for variables in (trained, states))
        memory.note(self, memory.Held(*sums))

    def _variables_of(self, grads: list[Any], trainable_variables: Any) -> list[Any]:
        """Returns [] if Keras' own `apply` has nothing to do or will refuse the call."""
        if trainable_variables is None:
            trainable_variables = self.optimizer._trainable_variables
            if self.shards is not None:
                trainable_variables = self.shards.wholes_of(trainable_variables)
        variables = list(trainable_variables)
        if not grads or len(grads) != len(variables):
            return []
        if self.optimizer.built:
            self.optimizer._check_variables_are_known(variables)
        return variables

    def count(self) -> Any:
        """Returns the divisor of this rank's loss in a step; None: all ranks count alike."""
        given = self.options.weight_by
        alike = self.optimizer.gradient_accumulation_steps  # Keras takes the mean of the passes
        if alike or not self.options.weighs or not self.options.included:
            return None
        step = loss_weights.current(self)
        if isinstance(given, str):
            given = None if step is None else step.of_loss()
        elif callable(given):
            if step is None:
                raise RuntimeError(
                    f"optimizer {self.optimizer.name!r} has a function for weight_by, and only "
                    "Keras' own train_step (fit, train_on_batch) gives it the batch.\n"
                    "In a step of your own use DistributedGradientTape(..., weight_by=number), or "
                    "give the optimizer a tf.Variable, to which each step assigns the number."
                )
            given = step.of_batch(given)
        return given

    def announced(self, loss: Any) -> Any:
        """Returns the loss of Keras' own train_step; its gradients count this rank."""
        step = loss_weights.current(self)
        if step is None:
            return loss
        step.has_loss = True
        return backward.announced(loss, self.count)

    def _weight(
        self, grads: Sequence[Any], variables: Sequence[Any], name: str, is_pass: bool = False
    ) -> weights.Weight | None:
        """Returns how much this rank counts in a step; None: all ranks count alike.

        They do if a rank is always alone and its loss gives the count, unless passes have different
        sizes.
        """
        by_loss = isinstance(self.options.weight_by, str)
        count = None if by_loss and not is_pass and topology.always_alone() else self.count()
        if count is None:
            return None
        backward.over(grads)
        return weights.of_step(
            count,
            name,
            process_set_id=process_sets.checked_id(self.options.members),
            narrow=self.options.narrow(variables),
        )

    def _weigh_pass(
        self, grads: list[Any], variables: list[Any]
    ) -> tuple[list[Any], weights.PassWeights | None]:
        """Returns what to accumulate of one pass, and the weights of all passes."""
        weight = self._weight(grads, variables, self._call_name(variables), is_pass=True)
        if weight is None:
            return grads, None
        passes = self._pass_weights.setdefault(key_of(variables), weights.PassWeights())
        return passes.add(grads, weight), passes

    def _reduce_overwrites(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        positions = [i for i, v in enumerate(variables) if _overwrites(v)]
        result = list(grads)
        if not positions:
            return result
        reduced = self._reducer.exact(reduce_ops.Max).reduce(
            [grads[i] for i in positions],
            [variables[i] for i in positions],
            name=f"{self._call_name(variables)}.overwrite",
        )
        for i, gradient in zip(positions, reduced, strict=True):
            result[i] = gradient
        return result

    def _check_reduced(self, call: _Call) -> None:
        """Raises RuntimeError if an update was made with this rank's own accumulated gradients."""
        if call.reduced or not call.live:
            return
        if tf.executing_eagerly():
            steps = self.optimizer.gradient_accumulation_steps
            if not steps or steps_taken(self.optimizer) % steps:
                return
        raise RuntimeError(
            f"optimizer {self.optimizer.name!r} ({type(self.optimizer).__name__}) accumulates "
            "gradients in a way of its own, without Keras' `_clip_gradients`, and they would not "
            "be reduced over the ranks: use it without gradient_accumulation_steps"
        )


def _live(grads: Sequence[Any], variables: Sequence[Any]) -> list[int]:
    """Returns the positions of the gradients that reach `_clip_gradients`."""
    pairs = enumerate(zip(grads, variables, strict=True))
    return [i for i, (g, v) in pairs if g is not None and not _overwrites(v)]


def _overwrites(variable: Any) -> bool:
    return bool(getattr(variable, "overwrite_with_gradient", False))
