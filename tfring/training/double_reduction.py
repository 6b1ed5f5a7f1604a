"""Refuses to reduce gradients twice, and warns about gradients that are averaged twice.

It is easy to wrap both the tape and the optimizer by mistake. With op=Sum every rank's gradient
would then count N times. Three signs show it:

1. The gradient is the very object that the tape returned.
2. In a graph, the gradient was computed from a tape's result in that graph, whatever changed it
since (clipped, scaled, returned by another tf.function).
3. In eager mode a value does not tell what it was computed from. There the sign is that a tape has
reduced gradients of this variable since the optimizer was wrapped.

A program may reduce over two different process sets, one after the other.

A search in the graph (graph_search) finds the second sign. A collective carries its name and
process set as attributes, and a tape's names begin with TAPE_PREFIX. A record by variable, as in
eager mode, would not do. A step may use a tape to reduce a gradient for a penalty or a perturbation
of the weights, and then train the same variable with a wrapped optimizer.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfring.ops import gradients as conventions
from tfring.runtime import process_sets, topology
from tfring.training.graph_search import collectives_behind
from tfring.training.reduction_record import REDUCED_MARK, reductions
from tfring.training.value_names import variable_name

_log = logging.getLogger("tfring")

TAPE_PREFIX = "tfring.tape."


def mark(gradient: Any, members: Any) -> None:
    """Marks the result of a reduction over a process set; ignores None."""
    if gradient is not None:
        setattr(gradient, REDUCED_MARK, process_sets.checked_id(members))


def is_marked(gradient: Any) -> bool:
    """Returns whether this very object is the result of a reduction."""
    return getattr(gradient, REDUCED_MARK, None) is not None


def refuse_reduced(
    gradients: Sequence[Any], variables: Sequence[Any], members: Any, since: int
) -> None:
    """Raises ValueError if gradients have been reduced already.

    Args:
        gradients: what is about to be reduced, None where there is none.
        variables: one per gradient.
        members: the process set to reduce over.
        since: when the optimizer was wrapped, in the time of the record of reductions.
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
            f"The gradient of {variable_name(found[0])!r} has already been reduced, by a "
            "DistributedGradientTape, an optimizer's _compute_gradients or your own code "
            "(hvd.mark_reduced), and would be reduced again.\n"
            "Reduce all gradients of a step in one place: wrap the tape or the optimizer, not "
            "both."
        )


def symbolic_parts(gradients: Iterable[Any]) -> list[Any]:
    """Returns the graph tensors of these gradients; none in eager mode."""
    values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients]
    return [t for t in values if isinstance(t, tf.Tensor) and not hasattr(t, "numpy")]


def comes_from(tensors: Sequence[Any], prefix: str) -> bool:
    """Returns whether tensors depend on a collective whose name begins with `prefix`."""
    return any(name.startswith(prefix) for name, _ in collectives_behind(tensors))


def _computed_from_reduced(tensors: Sequence[Any], set_id: int) -> bool:
    """Returns whether tensors were computed from what a tape reduced over a process set.

    A loss that contains reduced gradients, such as a gradient penalty, is differentiated through
    the tape's reduction. Its gradient depends on the reduction but has not been reduced. It also
    depends on the gradient op of that reduction, which shows the difference.
    """
    behind = set(collectives_behind(tensors))
    if any(name.startswith(f"grad.{TAPE_PREFIX}") for name, _ in behind):
        return False
    return any(name.startswith(TAPE_PREFIX) and over == set_id for name, over in behind)


def warn_of_averages(gradients: Sequence[Any], variables: Sequence[Any], members: Any) -> None:
    """Warns once, on rank 0, about gradients that a gather has averaged and a reduction would.

    The part behind the gather then counts 1/N of its value in one process. Adam hides this, and a
    loss does not show it. In eager mode a value does not tell what it was computed from. Only
    gathers with this convention (tfring.ops.gradients) cost the search.

    Args:
        gradients: what is about to be averaged, None where there is none.
        variables: one per gradient.
        members: the process set to average over.
    """
    if not conventions.averaging or topology.rank() != 0 or topology.size() == 1:
        return
    set_id = process_sets.checked_id(members)
    for gradient, variable in zip(gradients, variables, strict=True):
        for name, over in collectives_behind(symbolic_parts([gradient])):
            if over == set_id and name in conventions.averaging:
                _warn(variable_name(variable), name.removeprefix("grad.").partition("#")[0])
                return


@functools.lru_cache(maxsize=64)
def _warn(variable: str, call: str) -> None:
    size = topology.size()
    _log.warning(
        f"Rank 0 averages the gradient of {variable!r} over {size} ranks. The gradient of "
        f"{call!r} has already averaged a part of it, so that part counts 1/{size} of its value "
        "in one process.\n"
        'Write gradient="sum" in that call of allgather or broadcast; it is the default of '
        "`import tfring`. For an example, run: tfring help recipes embeddings"
    )
