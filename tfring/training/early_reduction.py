"""Remembers gradients that an optimizer has reduced before it applies any.

`_compute_gradients` and similar methods return reduced gradients. An optimizer applies these very
objects as they are. It reduces all others, because a gradient does not tell what it was computed
from: a program may have clipped a reduced gradient, or computed a new one. A gradient that is equal
on all ranks is its own average, so another reduction does no harm. If it would, as with op=Sum, an
error says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfring.ops import reduce_ops
from tfring.training import double_reduction
from tfring.training.local_variables import LocalVariables, variable_key
from tfring.training.options import ReduceOptions
from tfring.training.value_names import variable_name

_MARK = "_tfring_reduced_early"


class EarlyReduction:
    """The early reduced gradients of one optimizer; for the thread that runs its steps."""

    def __init__(self, options: ReduceOptions, local: LocalVariables) -> None:
        """Takes how the optimizer reduces, and its local variables."""
        self._options = options
        self._local = local
        self._variables: set[Any] = set()  # variables whose gradients were returned

    def mark(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Returns copies of reduced gradients, which `left` will recognise."""
        marked = [g if g is None or double_reduction.is_marked(g) else _copy(g) for g in gradients]
        for gradient in marked:
            if gradient is not None:
                setattr(gradient, _MARK, self)
        self._variables.update(variable_key(v) for v in variables)
        return marked

    def any_of(self, variables: Iterable[Any]) -> bool:
        """Returns whether a gradient of one of these variables was reduced early."""
        return any(variable_key(v) in self._variables for v in variables)

    def left(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[int]:
        """Returns the positions of the gradients that are not yet reduced.

        Raises:
            ValueError: the gradient may be reduced already, and another reduction would do harm.
        """
        ours = {i for i, g in enumerate(gradients) if getattr(g, _MARK, None) is self}
        others = [i for i, g in enumerate(gradients) if g is not None and i not in ours]
        if ours and not others:
            return []
        local = self._local.positions(variables)
        for i in others:
            harm = self._harm(i in local)
            if harm and self.any_of([variables[i]]):
                name = variable_name(variables[i])
                raise ValueError(
                    f"The gradient of {name!r} is not the object that this optimizer has reduced "
                    "and returned (_compute_gradients, get_gradients, _aggregate_gradients). It "
                    f"may have been computed from that object. Then {harm}.\n"
                    "Apply what the optimizer returned, unchanged. To change reduced gradients, "
                    "use a DistributedGradientTape and an optimizer that is not wrapped."
                )
        return [i for i in range(len(gradients)) if i not in ours]

    def _harm(self, local: bool) -> str:
        """Returns the harm that another reduction would do; "" for none."""
        options = self._options
        if local:
            divided = "the number of ranks would divide this local gradient twice"
            return divided if self._local.scale else ""
        if options.before_reduce is not None or options.after_reduce is not None:
            return "before_reduce and after_reduce would change it twice"
        if options.op in (reduce_ops.Sum, reduce_ops.Product):
            return f"op={reduce_ops.name_of(options.op)} would count it more than once"
        return ""


def _copy(gradient: Any) -> Any:
    """Returns a new object: a local gradient's own object may be in use elsewhere."""
    return tf.nest.map_structure(tf.identity, gradient, expand_composites=True)
