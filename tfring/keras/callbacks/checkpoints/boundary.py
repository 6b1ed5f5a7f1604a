"""UpdateBoundary: where no accumulated gradient waits for an update."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np

from tfring.keras import facts
from tfring.keras.agreement import highest
from tfring.keras.gradient_hook import find_hook
from tfring.keras.hook import steps_taken
from tfring.keras.model_optimizers import optimizers_of, parts_of
from tfring.runtime import topology

_LOST = (
    "tfring: a checkpoint is taken between two updates, and the gradients that were accumulated "
    "since the last one are not in it. {}"
)
_AT_END = "End training after a multiple of the optimizer's passes per update"
_NEVER = "The optimizers of the model never make an update in the same step"


class UpdateBoundary:
    """Says whether a checkpoint may be taken after a step; all ranks ask after the same steps.

    Accumulated gradients are as large as the weights, and each rank has its own. No checkpoint
    keeps them: it waits for the update, which is a few passes away.
    """

    def __init__(self) -> None:
        self._waited = 0
        self._searched: Any = None  # the model's optimizer at the last search
        self._periods: list[int] = []

    def is_here(self, model: Any, *, final: bool = False) -> bool:
        """Returns whether no rank holds gradients; a collective where optimizers accumulate.

        If the optimizers of a model never make their updates in the same step, it becomes true
        after some time, with a warning. `final` says that no step comes after this one.
        """
        compiled = getattr(model, "optimizer", None)
        if compiled is None or compiled is not self._searched:
            # Elastic `fit` asks after each step, and to search a large model takes milliseconds.
            # Optimizers in other attributes are there at the first step.
            self._searched, self._periods = compiled, _periods(model)
        periods = self._periods
        if not periods:
            return True
        mine = [_holds_gradients(model), self._waited]
        agreed = highest(mine, "tfring.checkpoint.held")
        held, self._waited = bool(agreed[0]), int(agreed[1]) + 1
        now = final or self._waited > 2 * math.lcm(*periods)
        if held and now and topology.rank() == 0:
            warnings.warn(_LOST.format(_AT_END if final else _NEVER), stacklevel=4)
        if not held or now:
            self._waited = 0
        return not held or now


def forget_gradients(model: Any) -> None:
    """Sets to zero what optimizers, and tfring for them, have accumulated."""
    for optimizer in optimizers_of(model).values():
        hook = find_hook(optimizer)
        held = [] if hook is None else hook.accumulated()
        for part in parts_of(optimizer):
            held += getattr(part, "_accumulated_gradients", None) or []
        for variable in held:
            variable.assign(np.zeros_like(variable.numpy()))


def _periods(model: Any) -> list[int]:
    """Returns the passes per update of the optimizers that accumulate."""
    found = []
    for optimizer in optimizers_of(model).values():
        hook = find_hook(optimizer)
        found.append(1 if hook is None else hook.passes)
        found += [_passes(part) for part in parts_of(optimizer)]
    return [period for period in found if period > 1]


def _holds_gradients(model: Any) -> bool:
    for optimizer in optimizers_of(model).values():
        hook = find_hook(optimizer)
        if hook is not None and facts.number(hook.counter):
            return True
        accumulating = [part for part in parts_of(optimizer) if _passes(part) > 1]
        if any(steps_taken(part) % _passes(part) for part in accumulating):
            return True
    return False


def _passes(part: Any) -> int:
    return int(getattr(part, "gradient_accumulation_steps", None) or 1)
