"""Remembers which gradients a DistributedGradientTape has reduced, to refuse a second reduction.

Wrapping the tape and the optimizer is an easy mistake, and a Sum would count every rank's gradient
N times over. Three signs tell of it:
  - the gradient is the very object that the tape returned;
  - in a graph, it was computed from what a tape reduced there, however it was changed since;
  - in eager mode, where nobody knows what a value was computed from, a tape has reduced gradients
    of this variable since the optimizer was wrapped.
Reducing over two different process sets, one after the other, is allowed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfring import process_sets
from tfring.training.local_variables import variable_key

TAPE_PREFIX = "tfring.tape."

_MARK = "_tfring_reduced"

_lock = threading.Lock()  # guards _clock and _by_tape
_clock = 0
_by_tape: dict[tuple[Any, int], int] = {}  # (variable, process set) -> time of the last reduction


def mark(gradient: Any, members: Any) -> None:
    """Marks the result of a reduction over a process set; None may be given."""
    if gradient is not None:
        setattr(gradient, _MARK, process_sets.checked_id(members))


def now() -> int:
    """Returns a time; what a tape reduces from here on is later."""
    global _clock
    with _lock:
        _clock += 1
        return _clock


def is_marked(gradient: Any) -> bool:
    """Whether this very object came out of a reduction."""
    return getattr(gradient, _MARK, None) is not None


def note_tape(variables: Iterable[Any], members: Any) -> None:
    """Says that a tape reduces gradients of these variables, now or whenever its function runs."""
    number = process_sets.checked_id(members)
    keys = [(variable_key(v), number) for v in variables if not isinstance(v, tf.Tensor)]
    with _lock:
        _by_tape.update(dict.fromkeys(keys, _clock))


def refuse_reduced(
    gradients: Sequence[Any], variables: Sequence[Any], members: Any, since: int
) -> None:
    """Raises ValueError for gradients that a DistributedGradientTape has reduced already.

    Args:
        gradients: what is about to be reduced, None where there is none.
        variables: what the gradients belong to.
        members: the process set that they are about to be reduced over.
        since: when the optimizer was wrapped.
    """
    number = process_sets.checked_id(members)
    present = [(g, v) for g, v in zip(gradients, variables, strict=True) if g is not None]
    found = any(getattr(g, _MARK, None) == number for g, _ in present)
    symbolic = symbolic_parts(g for g, _ in present)
    if not found and symbolic:
        found = _computed_from_reduced(symbolic, number)
    if not found and not symbolic:
        with _lock:
            found = any(_by_tape.get((variable_key(v), number), -1) >= since for _, v in present)
    if found:
        raise ValueError(
            "these gradients were reduced by a DistributedGradientTape already and would be "
            "reduced again by the DistributedOptimizer: wrap the tape or the optimizer, not both"
        )


def symbolic_parts(gradients: Iterable[Any]) -> list[Any]:
    """Returns the tensors in the graph that gradients consist of; none in eager mode."""
    values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients]
    return [t for t in values if t is not None and not hasattr(t, "numpy")]


def comes_from(tensors: Sequence[Any], prefix: str) -> bool:
    """Returns whether symbolic tensors were computed from a collective whose name begins so."""
    return any(name.startswith(prefix) for name, _ in _collectives_behind(tensors))


def _computed_from_reduced(tensors: Sequence[Any], number: int) -> bool:
    """Returns whether the tensors were computed from what a tape reduced over a process set.

    Whoever differentiates through a tape's reduction, as for a gradient penalty, depends on it
    without having reduced: such a graph holds the reduction's own gradient.
    """
    behind = set(_collectives_behind(tensors))
    if any(name.startswith(f"grad.{TAPE_PREFIX}") for name, _ in behind):
        return False
    return any(name.startswith(TAPE_PREFIX) and over == number for name, over in behind)


def _collectives_behind(tensors: Sequence[Any]) -> Iterator[tuple[str, int]]:
    """Name and process set of all collectives that the tensors were computed from."""
    seen: set[int] = set()
    stack = list(tensors)
    captured: dict[int, dict[int, Any]] = {}
    while stack:
        tensor = stack.pop()
        if id(tensor) in seen or hasattr(tensor, "numpy"):
            continue
        seen.add(id(tensor))
        op = tensor.op
        yield from _collectives_of(op)
        if op.type == "Placeholder":
            outer = _captures_of(op.graph, captured).get(id(tensor))
            if outer is not None:
                stack.append(outer)
        stack.extend(op.inputs)


def _captures_of(graph: Any, known: dict[int, dict[int, Any]]) -> dict[int, Any]:
    """Returns what the placeholders of a function's graph stand for outside of it."""
    if id(graph) not in known:
        pairs = getattr(graph, "captures", ())
        known[id(graph)] = {id(inner): outer for outer, inner in pairs}
    return known[id(graph)]


def _collectives_of(op: Any) -> list[tuple[str, int]]:
    """Returns name and process set of the collectives that an operation is or calls."""
    if op.type.startswith("Tfring"):
        return _named(op.node_def)
    if "Call" not in op.type and op.type not in ("If", "StatelessIf", "While", "StatelessWhile"):
        return []
    found: list[tuple[str, int]] = []
    pending = _functions_of(op.node_def)
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        function = op.graph._get_function(name)
        if function is None:
            continue
        for node in function.cached_definition.node_def:
            found += _named(node)
            pending += _functions_of(node)
    return found


def _named(node: Any) -> list[tuple[str, int]]:
    if not node.op.startswith("Tfring") or "tensor_name" not in node.attr:
        return []
    return [(tf.compat.as_str(node.attr["tensor_name"].s), int(node.attr["process_set_id"].i))]


def _functions_of(node: Any) -> list[str]:
    return [value.func.name for value in node.attr.values() if value.func.name]
