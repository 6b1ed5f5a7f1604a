"""Remembers gradients that an optimizer has reduced before it is asked to apply them.

A program may change them in between, clip them for example. In a graph they are known again by the
collectives from which they were computed. An eager value does not say what it was computed from;
there the next call for the same variables counts as theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfring.training import double_reduction
from tfring.training.local_variables import variable_key


class EarlyReduction:
    """What one optimizer has reduced early; for the thread that traces or runs its steps."""

    def __init__(self) -> None:
        self._in_graph = False
        self._in_eager: set[Any] = set()  # keys of variables

    def note(self, variables: Sequence[Any]) -> None:
        """Notes that the gradients of these variables were reduced just now."""
        if tf.executing_eagerly():
            self._in_eager = {variable_key(v) for v in variables}
        else:
            self._in_graph = True

    def covers(self, gradients: Sequence[Any], variables: Sequence[Any], prefix: str) -> bool:
        """Tells whether these gradients were; in eager mode once after each `note`.

        Args:
            gradients: what is about to be applied, None where there is none.
            variables: their variables.
            prefix: how the names of the optimizer's collectives begin.
        """
        symbolic = double_reduction.symbolic_parts(g for g in gradients if g is not None)
        if symbolic:
            return self._in_graph and double_reduction.comes_from(symbolic, prefix)
        noted, self._in_eager = self._in_eager, set()
        return bool(noted) and noted >= {variable_key(v) for v in variables}
