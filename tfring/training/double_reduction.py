"""Refuses to reduce gradients a second time that a DistributedGradientTape has reduced.

Wrapping both the tape and the optimizer is an easy mistake, and with op=Sum every rank's gradient
would count N times. Three signs give it away:

1. The gradient is the very object that the tape returned.
2. In a graph, the gradient was computed from what a tape reduced in that graph, however it was
   changed since (clipped, scaled, returned by another tf.function).
3. In eager mode, where a value does not say what it was computed from, a tape has reduced gradients
   of this variable since the optimizer was wrapped.

Reducing over two different process sets, one after the other, is allowed.

The second sign is found by a search in the graph (graph_search). A collective carries its name and
its process set as attributes, and those that a tape builds have names that begin with TAPE_PREFIX.
A record by variable, as in eager mode, would not do: a step may reduce a gradient of a variable
with a tape, for a penalty or a perturbation of the weights, and then train the same variable with a
wrapped optimizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfring.runtime import process_sets
from tfring.training.graph_search import collectives_behind
from tfring.training.reduction_record import REDUCED_MARK, reductions
from tfring.training.value_names import variable_name

TAPE_PREFIX = "tfring.tape."


def mark(gradient: Any, members: Any) -> None:
    """Marks the result of a reduction over a process set; does nothing to None."""
    if gradient is not None:
        setattr(gradient, REDUCED_MARK, process_sets.checked_id(members))


def is_marked(gradient: Any) -> bool:
    """Returns whether this very object is the result of a reduction."""
    return getattr(gradient, REDUCED_MARK, None) is not None


def refuse_reduced(
    gradients: Sequence[Any], variables: Sequence[Any], members: Any, since: int
) -> None:
    """Raises ValueError for gradients that have been reduced already.

    Args:
        gradients: what is about to be reduced, None where there is none.
        variables: what the gradients belong to.
        members: the process set over which they are about to be reduced.
        since: the time in the record of reductions at which the optimizer was wrapped.
    """
    set_id = process_sets.checked_id(members)
    present = [(g, v) for g, v in zip(gradients, variables, strict=True) if g is not None]
    found = [v for g, v in present if getattr(g, REDUCED_MARK, None) == set_id]
    symbolic = symbolic_parts(g for g, _ in present)
    if not found and symbolic and _computed_from_reduced(symbolic, set_id):
        found = [v for g, v in present if _computed_from_reduced(symbolic_parts([g]), set_id)]
        found = found or [v for _, v in present]
    if not found and not symbolic:
        found = [v for _, v in present if reductions.any_by_tape_since([v], set_id, since)]
    if found:
        raise ValueError(
            f"The gradient of {variable_name(found[0])!r} was reduced already, by a "
            "DistributedGradientTape, an optimizer's _compute_gradients or your own code "
            "(hvd.mark_reduced), and would be reduced again.\n"
            "Reduce all gradients of a step in one place: wrap the tape or the optimizer, not both."
        )


def symbolic_parts(gradients: Iterable[Any]) -> list[Any]:
    """Returns the graph's tensors that gradients consist of; none in eager mode."""
    values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients]
    return [t for t in values if isinstance(t, tf.Tensor) and not hasattr(t, "numpy")]


def comes_from(tensors: Sequence[Any], prefix: str) -> bool:
    """Returns whether a graph's tensors were computed from a collective whose name begins so."""
    return any(name.startswith(prefix) for name, _ in collectives_behind(tensors))


def _computed_from_reduced(tensors: Sequence[Any], set_id: int) -> bool:
    """Returns whether the tensors were computed from what a tape reduced over a process set.

    A loss that contains reduced gradients, as for a gradient penalty, is differentiated through the
    tape's reduction. Its gradient has not been reduced itself, though it depends on the reduction;
    what tells it apart is that it also depends on the gradient operation of that reduction.
    """
    behind = set(collectives_behind(tensors))
    if any(name.startswith(f"grad.{TAPE_PREFIX}") for name, _ in behind):
        return False
    return any(name.startswith(TAPE_PREFIX) and over == set_id for name, over in behind)
