"""BroadcastGlobalVariablesCallback: all ranks start from the same weights."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from typing import Any

from tfring.collectives import objects
from tfring.collectives.variables import broadcast_variables, describe_variables
from tfring.keras import checks, facts, preprocessing
from tfring.keras.callbacks import fits, state
from tfring.keras.callbacks.base import LocalVariablesCallback
from tfring.keras.gradient_hook import hook_of, innermost
from tfring.keras.model_optimizers import hooks_of, optimizers_of, refuse_parts_of_sets
from tfring.runtime import topology
from tfring.training import first_steps

_log = logging.getLogger("tfring")
_ONE_CLASS = (
    "compile the model with the same optimizer on every rank, that of the file where one has "
    "loaded it"
)
_WRAP_ALL = (
    "None reduces no gradients. Give compile() what DistributedOptimizer returns on every rank; "
    "load_model of tfring wraps what it loads, that of Keras does not"
)
_SAME_NAMES = (
    "optimizers without name= are numbered in the order of use, and the ranks have used different "
    "numbers of them. Pass the same name= to DistributedOptimizer and load_model on every rank"
)


class BroadcastGlobalVariablesCallback(LocalVariablesCallback):
    """Gives every rank the weights and optimizer states of one rank, in every `fit`.

    Before the first batch it broadcasts what exists by then, so that all ranks take their first
    step from the same weights and state. If another rank has loaded and so built an optimizer, it
    is built here first. After the first batch every optimizer has its state, and all of it is
    broadcast again, as in Horovod. Preprocessing layers get what those of that rank have learnt.
    All optimizers of the model take part, also those in its attributes and sub-models. Random seeds
    of layers stay each rank's own.

    Before the first batch it also refuses ranks that differ in steps_per_execution or in the
    classes or names of their optimizers: they would wait for each other.
    """

    def __init__(
        self,
        root_rank: int,
        device: str = "",
        local_variables: Any = None,
        *,
        reduced_by_user: bool = False,
    ) -> None:
        """Sets what to broadcast.

        Args:
            root_rank: the rank whose values all get.
            device: TensorFlow device for the broadcast, "" for TensorFlow's choice.
            local_variables: this rank's own variables, which stay as they are, besides those that
                the optimizers know as local (register_local_var, local_layers).
            reduced_by_user: the model may train without reducing gradients, for example because a
                callback of yours averages the weights after each epoch. Then no callback of tfring
                checks optimizers, steps and learning rates.
        """
        super().__init__(local_variables)
        self.root_rank = root_rank
        self.device = device
        self.reduced_by_user = reduced_by_user
        self._pending = False

    def set_params(self, params: Any) -> None:
        super().set_params(params)
        if self._fit is not None:
            self._fit.reduced_by_user |= self.reduced_by_user

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        super().on_train_begin(logs)
        self._pending = True
        refuse_parts_of_sets(self.model, "BroadcastGlobalVariablesCallback")
        preprocessing.make_equal(self.model, self.root_rank)
        state.build_before_tracing(self.model)
        weights = state.shared_weights(self.model, self.local())
        optimizers, hooks = optimizers_of(self.model), hooks_of(self.model)
        mine = {
            "whole": bool(self.model.built),
            "weights": describe_variables(weights),
            "built": state.built_with(self.model),
            "classes": {path: type(innermost(optimizers[path])).__name__ for path in hooks},
            "names": {path: hook.name for path, hook in hooks.items()},
            "executions": _executions(self.model),
            "rates": self._settable_rates(),
        }
        everywhere = objects.allgather_json(mine, name="tfring.broadcast_callback.begin")
        self._refuse_different_ranks(everywhere)
        checks.refuse_other_models(weights, everywhere)
        if topology.rank() == self.root_rank:
            for text in lost_rates([each["rates"] for each in everywhere], self.root_rank):
                _log.warning("%s", text)
        # Ranks may differ in what exists by now, for example if the root alone has built its model.
        # Then that is broadcast after the first step, for which the root uses its own.
        later = not _all_equal(each["weights"] for each in everywhere)
        first_steps.broadcast_comes(later)
        if later:
            self.fit.made_equal_later = True
            return
        built = [each["built"] for each in everywhere]
        state.build_alike(self.model, [built[self.root_rank], *built])
        slots = state.shared_state(self.model, self.local())
        described = describe_variables(slots)
        others = objects.allgather_json(described, name="tfring.broadcast_callback.state")
        self._broadcast([*weights, *slots] if _all_equal(others) else weights)

    def _settable_rates(self) -> dict[str, float]:
        """Returns the learning rates that the broadcast sets; it sets none of a schedule."""
        parts = {path: innermost(each) for path, each in optimizers_of(self.model).items()}
        return {
            path: facts.rate_of(part)
            for path, part in parts.items()
            if facts.is_variable(getattr(part, "_learning_rate", None))
        }

    def _refuse_different_ranks(self, everywhere: list[dict[str, Any]]) -> None:
        """Raises RuntimeError on all ranks if some would wait for calls that others never make."""
        fits.refuse(
            "steps_per_execution",
            [each["executions"] for each in everywhere],
            "compile the model alike on every rank",
        )
        for path in sorted({path for each in everywhere for path in each["names"]}):
            classes = [each["classes"].get(path) for each in everywhere]
            fits.refuse(
                f"the class of {path}", classes, _WRAP_ALL if None in classes else _ONE_CLASS
            )
            names = [each["names"].get(path) for each in everywhere]
            fits.refuse(f"the name of {path}", names, _SAME_NAMES)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_train_batch_end(batch, logs)
        if self._pending:
            self._pending = False
            weights = state.shared_weights(self.model, self.local())
            slots = state.shared_state(self.model, self.local(), accumulators=False)
            self._broadcast([*weights, *slots])
            first_steps.broadcast_comes(False)
            self.fit.made_equal(self.model)

    def _broadcast(self, variables: list[Any]) -> None:
        broadcast_variables(variables, root_rank=self.root_rank, device=self.device)


def lost_rates(everywhere: list[dict[str, float]], root: int) -> list[str]:
    """Returns a warning for each optimizer whose learning rate on some ranks the root's replaces.

    `everywhere` has for each rank the learning rates, by the path of the optimizer in the model.
    """
    texts = []
    for path, used in everywhere[root].items():
        asked = [rates.get(path, used) for rates in everywhere]
        others = [rank for rank, rate in enumerate(asked) if not math.isclose(rate, used)]
        if others:
            ranks = "1 rank has" if len(others) == 1 else f"{len(others)} ranks have"
            texts.append(
                f"{ranks} another learning rate than rank {root} (rank {others[0]}: "
                f"{asked[others[0]]:.6g}). All ranks now use rank {root}'s, {used:.6g}.\n"
                f"Give {path} the same learning rate on every rank."
            )
    return texts


def _executions(model: Any) -> int | None:
    """Returns how many steps Keras runs between two calls of the callbacks."""
    return None if hook_of(model) is None else int(getattr(model, "steps_per_execution", 1))


def _all_equal(values: Iterable[Any]) -> bool:
    first, *others = values
    return all(other == first for other in others)
