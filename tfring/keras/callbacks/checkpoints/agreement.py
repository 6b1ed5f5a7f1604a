"""Agreement: what all ranks have to decide alike while they train, at a small price."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from tfring.ops import reduce_ops
from tfring.runtime import _native
from tfring.runtime.exceptions import tf_errors

# The ranks ask each other about so often, in seconds, so that the price does not matter and a stop
# still comes soon; and at least every so many steps.
_PERIOD = 1.0
_MOST_STEPS = 100
_FASTEST = 1e-6  # seconds of a step: a clock may show none


class Agreement:
    """Asks all ranks, about once a second, whether to stop, whether a checkpoint is due, and so on.

    A signal comes to ranks at different times, and clocks differ. So the ranks exchange a few
    numbers in one allreduce (about 0.1 ms on one host), after the same steps on all of them: after
    how many more they ask again is computed from the slowest rank's time per step, which is among
    the numbers, and at most doubles each time. Used by the thread that trains.
    """

    def __init__(self) -> None:
        self.begin(0)

    def begin(self, step: int) -> None:
        """Starts to count when training begins, after `step` steps."""
        self._asked_at, self._asked_step = time.monotonic(), step
        self._distance = 1

    def is_due(self, step: int) -> bool:
        """Returns whether to ask after this step; the same on all ranks."""
        return step >= self._asked_step + self._distance

    def ask(self, step: int, *wishes: bool) -> list[bool]:
        """Asks all ranks; a collective.

        Args:
            step: how many steps were trained, on all ranks.
            wishes: what this rank wants: to stop, to save, and so on.

        Returns:
            Which of them a rank wants.
        """
        now = time.monotonic()
        per_step = (now - self._asked_at) / max(1, step - self._asked_step)
        agreed = highest([*wishes, max(per_step, _FASTEST)], "tfring.checkpoint.ask")
        steps = min(int(_PERIOD / agreed[-1]), 2 * self._distance, _MOST_STEPS)
        self._distance = max(1, steps)
        self._asked_at, self._asked_step = now, step
        return [bool(wish) for wish in agreed[:-1]]


def highest(numbers: Sequence[float], name: str) -> list[float]:
    """Returns for each number the highest of all ranks; a collective with this name."""
    mine = np.array(numbers, dtype=np.float64)
    with tf_errors():
        _native.note_call_site()
        agreed: list[float] = _native.core.allreduce(mine, name=name, op=reduce_ops.Max).tolist()
    return agreed
