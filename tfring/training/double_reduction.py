"""Refuses to reduce gradients a second time that a DistributedGradientTape has reduced.

Wrapping both the tape and the optimizer is an easy mistake, and with op=Sum every rank's gradient
would count N times. Three signs give it away:

1. The gradient is the very object that the tape returned.
2. In a graph, the gradient was computed from what a tape reduced in that graph, however it was
   changed since (clipped, scaled, returned by another tf.function).
3. In eager mode, where a value does not say what it was computed from, a tape has reduced gradients
   of this variable since the optimizer was wrapped.

Reducing over two different process sets, one after the other, is allowed.

The second sign is found by a depth-first search that starts at the gradient and goes from each
operation to the operations that compute its inputs. Where it arrives at the input of a function's
body, it goes on at the tensor outside that the function captured; where it arrives at a call or a
branch, it reads the bodies that are called. A collective carries its name and its process set as
attributes, and those that a tape builds have names that begin with TAPE_PREFIX. Each operation is
visited once, when a step is traced; nothing is left for when it runs. A record by variable, as in
eager mode, would not do: a step may reduce a gradient of a variable with a tape, for a penalty or a
perturbation of the weights, and then train the same variable with a wrapped optimizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfring import process_sets
from tfring.training.reduction_record import REDUCED_MARK, reductions

TAPE_PREFIX = "tfring.tape."

_OPS_WITH_BODIES = ("If", "StatelessIf", "While", "StatelessWhile")


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
    """Raises ValueError for gradients that a DistributedGradientTape has reduced already.

    Args:
        gradients: what is about to be reduced, None where there is none.
        variables: what the gradients belong to.
        members: the process set over which they are about to be reduced.
        since: the time in the record of reductions at which the optimizer was wrapped.
    """
    set_id = process_sets.checked_id(members)
    present = [(g, v) for g, v in zip(gradients, variables, strict=True) if g is not None]
    found = any(getattr(g, REDUCED_MARK, None) == set_id for g, _ in present)
    symbolic = symbolic_parts(g for g, _ in present)
    if not found and symbolic:
        found = _computed_from_reduced(symbolic, set_id)
    if not found and not symbolic:
        found = reductions.any_by_tape_since((v for _, v in present), set_id, since)
    if found:
        raise ValueError(
            "these gradients were reduced by a DistributedGradientTape already, or hvd.reduced "
            "says that they were, and would be reduced again by the DistributedOptimizer: wrap the "
            "tape or the optimizer, not both"
        )


def symbolic_parts(gradients: Iterable[Any]) -> list[Any]:
    """Returns the graph's tensors that gradients consist of; none in eager mode."""
    values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients]
    return [t for t in values if t is not None and not hasattr(t, "numpy")]


def comes_from(tensors: Sequence[Any], prefix: str) -> bool:
    """Returns whether a graph's tensors were computed from a collective whose name begins so."""
    return any(name.startswith(prefix) for name, _ in _collectives_behind(tensors))


def _computed_from_reduced(tensors: Sequence[Any], set_id: int) -> bool:
    """Returns whether the tensors were computed from what a tape reduced over a process set.

    A loss that contains reduced gradients, as for a gradient penalty, is differentiated through the
    tape's reduction. Its gradient has not been reduced itself, though it depends on the reduction;
    what tells it apart is that it also depends on the gradient operation of that reduction.
    """
    behind = set(_collectives_behind(tensors))
    if any(name.startswith(f"grad.{TAPE_PREFIX}") for name, _ in behind):
        return False
    return any(name.startswith(TAPE_PREFIX) and over == set_id for name, over in behind)


def _collectives_behind(tensors: Sequence[Any]) -> Iterator[tuple[str, int]]:
    """Yields name and process set of all collectives from which the tensors were computed."""
    seen: set[int] = set()
    stack = list(tensors)
    captures: dict[int, dict[int, Any]] = {}  # by graph: inner placeholder -> outer tensor
    while stack:
        tensor = stack.pop()
        if id(tensor) in seen or hasattr(tensor, "numpy"):
            continue
        seen.add(id(tensor))
        op = tensor.op
        yield from _collectives_in(op)
        if op.type == "Placeholder":
            graph = op.graph
            if id(graph) not in captures:
                pairs = getattr(graph, "captures", ())
                captures[id(graph)] = {id(inner): outer for outer, inner in pairs}
            outer = captures[id(graph)].get(id(tensor))
            if outer is not None:
                stack.append(outer)
        stack.extend(op.inputs)


def _collectives_in(op: Any) -> Iterator[tuple[str, int]]:
    """Yields name and process set of the collective that `op` is, or of those that it calls."""
    if op.type.startswith("Tfring"):
        yield from _collective_of(op.node_def)
    if "Call" not in op.type and op.type not in _OPS_WITH_BODIES:
        return
    pending = _functions_of(op.node_def)
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        function = op.graph._get_function(name)
        if name in seen or function is None:
            continue
        seen.add(name)
        for node in function.cached_definition.node_def:
            yield from _collective_of(node)
            pending += _functions_of(node)


def _collective_of(node: Any) -> list[tuple[str, int]]:
    if not node.op.startswith("Tfring") or "tensor_name" not in node.attr:
        return []
    return [(tf.compat.as_str(node.attr["tensor_name"].s), int(node.attr["process_set_id"].i))]


def _functions_of(node: Any) -> list[str]:
    return [value.func.name for value in node.attr.values() if value.func.name]
