"""GradientHook: what the hooks for the optimizers of Keras 2 and 3 have in common."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import tensorflow as tf

from tfring.keras import facts
from tfring.training import double_reduction, saved_options
from tfring.training.accumulation import LocalGradientAggregationHelper
from tfring.training.early_reduction import EarlyReduction
from tfring.training.local_variables import variable_key
from tfring.training.options import ReduceOptions
from tfring.training.ordinals import Ordinals
from tfring.training.reducer import GradientReducer
from tfring.training.reduction_record import reductions

_ATTRIBUTE = "_tfring_hook"
_optimizers = Ordinals()


def innermost(optimizer: Any) -> Any:
    """Returns the optimizer inside any LossScaleOptimizer."""
    while (inner := getattr(optimizer, "inner_optimizer", None)) is not None:
        optimizer = inner
    return optimizer


def find_hook(optimizer: Any) -> Any:
    """Returns the hook of a Keras 2 or 3 optimizer, or of an optimizer inside it.

    Returns None if there is none, or if `optimizer` is None.
    A custom optimizer may hold the wrapped one in any attribute (Lookahead, averages).
    """
    waiting, seen = [] if optimizer is None else [innermost(optimizer)], set()
    for inner in waiting:
        hook: Any = getattr(inner, _ATTRIBUTE, None)
        # An attribute that was copied along with __dict__ still belongs to the original optimizer.
        if isinstance(hook, GradientHook):
            return hook if hook.optimizer is inner else None
        seen.add(id(inner))
        held = [value for value in vars(inner).values() if hasattr(value, "apply_gradients")]
        waiting += [innermost(each) for each in held if id(innermost(each)) not in seen]
    return None


def hook_of(model: Any) -> Any:
    """Returns the hook of the optimizer that `compile` was given, or None."""
    return find_hook(getattr(model, "optimizer", None))


class _Names:
    """The names of one hook's collectives, the same on every rank."""

    def __init__(self, prefix: str, options: ReduceOptions, original: _Names | None) -> None:
        self._prefix, self._options, self._original = prefix, options, original
        self._copies, self._lists = Ordinals(), Ordinals()
        # What the optimizer is numbered by: numbers are kept for ever, and so are their keys.
        self._key = object()

    def start(self) -> str:
        """Returns what all names start with.

        It is made when it is first needed: a rank may wrap or copy optimizers and never use them.
        """
        if self._original is not None:
            return f"{self._original.start()}.copy{self._original._copies.number(self._key) + 1}"
        if self._options.name is not None:
            return f"{self._prefix}.{self._options.name}"
        # By process set: its members may use optimizers that the other ranks do not have.
        group = (self._prefix, self._options.members)
        return f"{self._prefix}.{_optimizers.number(self._key, group)}"

    def of_call(self, variables: Sequence[Any], early: bool) -> str:
        """Returns the name for a list of variables; what is reduced early gets another one.

        The lists are numbered in the order of their first use. The positions that Keras gives to
        variables will not do: it has none yet on a rank whose optimizer is not built.
        """
        return f"{self.start()}.{self._lists.number((early, *key_of(variables)))}"


class GradientHook:
    """Reduces the gradients that pass through one optimizer.

    Its replacements of the optimizer's methods are instance attributes: saving, `serialize` and
    `get_config` see the plain class, so a saved model loads without tfring.

    The thread that traces or runs the training step uses it. The hook and its optimizer refer to
    each other and are freed together.
    """

    prefix: ClassVar[str]  # of the names of collectives
    shards: Any = None  # StateShards, if each rank has a part of the optimizer's states

    def __init__(
        self, optimizer: Any, options: ReduceOptions, original: GradientHook | None = None
    ) -> None:
        """Prepares the hook of an innermost optimizer; `attach` puts it in place.

        `original` is the hook of the optimizer that this one was copied from.
        """
        self.optimizer = optimizer
        self.process_set = options.members
        self.options = options
        named = None if original is None else original._names
        self._names: _Names = _Names(self.prefix, options, named)
        self._reducer: GradientReducer = (
            GradientReducer(options) if original is None else original._reducer
        )
        self._early = EarlyReduction(options, self._reducer.local)
        self._helpers: dict[tuple[Any, ...], LocalGradientAggregationHelper] = {}
        self._wrapped_at = reductions.now()
        self._calls: list[Any] = []  # of the optimizer, under way
        self._traced = False  # whether a function that applies gradients was traced

    def _put(self, methods: Mapping[str, Any]) -> None:
        """Sets attributes of the optimizer; not by setattr, with which Keras would track them."""
        common = {
            _ATTRIBUTE: self,
            "register_local_var": self.register_local_var,
            "save_assets": self.save_assets,
        }
        if self.accumulates:
            common["_agg_helper"] = self
        for name, value in {**common, **methods}.items():
            object.__setattr__(self.optimizer, name, value)

    def register_local_var(self, var: Any) -> None:
        """Makes the gradient of a variable stay this rank's own.

        Args:
            var: keras.Variable or tf.Variable.

        Raises:
            RuntimeError: a training step has been traced, which reduces this gradient.
        """
        if self._traced:
            name = getattr(var, "path", getattr(var, "name", var))
            raise RuntimeError(
                f"register_local_var({name!r}): a training step was traced with optimizer "
                f"{facts.name_of(self.optimizer)!r} already and would go on reducing this gradient."
                "\nRegister local variables before the first training step, or wrap another "
                "optimizer."
            )
        self._reducer.local.register(var)

    def save_assets(self, folder: str) -> None:
        """Keeps the options in a file beside the model; Keras calls it when it saves."""
        own = getattr(type(self.optimizer), "save_assets", None)
        if own is not None:
            own(self.optimizer, folder)
        trained = getattr(self.optimizer, "_trainable_variables", [])
        saved_options.write(folder, self.options, self._reducer.local, trained)

    def local_among(self, variables: Sequence[Any]) -> list[Any]:
        """Returns those of `variables` whose gradients stay this rank's own."""
        return [variables[i] for i in sorted(self._reducer.local.positions(variables))]

    @property
    def name(self) -> str:
        """What the names of this hook's collectives start with, the same on every rank."""
        return self._names.start()

    @property
    def counter(self) -> Any:
        """The number of accumulated passes; Horovod's optimizers have it in `_agg_helper`."""
        return next(iter(self.accumulated()), tf.constant(0, tf.int64))

    @property
    def passes(self) -> int:
        """In how many passes the gradients of an update are accumulated; 1: they are not."""
        return self.options.backward_passes_per_step

    @property
    def accumulates(self) -> bool:
        """Whether only the last of several passes makes an update."""
        return self.passes > 1

    def accumulated(self) -> list[Any]:
        """Returns the variables in which tfring itself accumulates gradients."""
        return [v for helper in self._helpers.values() for v in helper.variables]

    def meet_after_early_stop(self) -> None:
        """Meets the other ranks in the first collective of their next training step.

        Raises:
            tf.errors.FailedPreconditionError: a rank is in a training step; it fails, too.
        """
        self._reducer.meet(f"{self.name}.0", "training was stopped within the epoch")

    def _helper(
        self, variables: Sequence[Any], weight: Callable[[], Any] = lambda: None
    ) -> LocalGradientAggregationHelper:
        """Returns what accumulates for these variables; `weight` gives that of an update."""
        key = key_of(variables)
        if key not in self._helpers:

            def reduce(gradients: list[Any], live: list[Any]) -> list[Any]:
                name = self._call_name(variables)
                return self._reducer.reduce(gradients, live, name=name, weight=weight())

            self._helpers[key] = LocalGradientAggregationHelper(
                self.options.backward_passes_per_step,
                reduce,
                average_aggregated_gradients=self.options.average_aggregated_gradients,
            )
        return self._helpers[key]

    def _call_name(self, variables: Sequence[Any], early: bool = False) -> str:
        return self._names.of_call(variables, early)

    def _refuse_reduced(self, grads: Sequence[Any], variables: Sequence[Any]) -> None:
        members = self.options.members
        double_reduction.refuse_reduced(grads, variables, members, self._wrapped_at)

    @contextlib.contextmanager
    def _call(self, call: Any) -> Iterator[Any]:
        self._calls.append(call)
        try:
            yield call
        finally:
            self._calls.pop()


def key_of(variables: Sequence[Any]) -> tuple[Any, ...]:
    """Returns what identifies a list of variables."""
    return tuple(variable_key(v) for v in variables)
