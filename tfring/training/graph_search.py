"""Finds the collectives that a graph's tensors were computed from.

A depth-first search from the tensors to the inputs of their operations. At an output of a call, a
branch or a loop it goes on at that output in the called function, and from the function's arguments
back to the inputs of the calls. (A function may reduce gradients and return a loss beside them.)
It runs when a step is traced, never when it runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
_LOOPS = ("While", "StatelessWhile")


def collectives_behind(tensors: Sequence[Any]) -> Iterator[tuple[str, int]]:
    """Yields name and process set of all collectives that symbolic tensors were computed from.

    The value of a tf.stop_gradient counts only if its shape allows that it is one of the tensors. A
    loss that is only weighted by it was not computed from it in the sense of a gradient.
    """
    shapes = {str(tensor.shape) for tensor in tensors}
    seen: set[int] = set()
    stack = list(tensors)
    bodies: dict[int, _Body] = {}
    while stack:
        tensor = stack.pop()
        if id(tensor) in seen or hasattr(tensor, "numpy"):
            continue
        seen.add(id(tensor))
        op = tensor.op
        if op.type == "StopGradient" and str(tensor.shape) not in shapes:
            continue
        called = _functions_of(op)
        if op.type == "Placeholder":
            if id(op.graph) not in bodies:
                bodies[id(op.graph)] = _Body(op.graph)
            stack += bodies[id(op.graph)].outside(tensor)
        elif not called or op.type in _LOOPS:
            yield from _collective_of(op.node_def)
            stack += op.inputs
        for graph in called:
            if id(graph) not in bodies:
                bodies[id(graph)] = _Body(graph)
            stack += bodies[id(graph)].inside(op, tensor.value_index)


class _Body:
    """The graph of a function, and the calls of it that the search has found."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        arguments, captures = getattr(graph, "inputs", ()), getattr(graph, "captures", ())
        self._places = {id(inner): place for place, inner in enumerate(arguments)}
        self._captured = {id(inner): outer for outer, inner in captures}
        self._calls: dict[int, Sequence[Any]] = {}  # the arguments, by id of the call
        self._needed: list[int] = []  # places of arguments that the search has found

    def outside(self, placeholder: Any) -> list[Any]:
        """Returns the tensors outside of the function that an argument of it stands for."""
        if not self._calls:
            captured = self._captured.get(id(placeholder))
            return [] if captured is None else [captured]
        self._needed.append(self._places[id(placeholder)])
        return [arguments[self._needed[-1]] for arguments in self._calls.values()]

    def inside(self, call: Any, output: int) -> list[Any]:
        """Returns what an output of a call depends on; a loop's depends on all of its body's."""
        results = self._graph.outputs
        wanted = list(results if call.type in _LOOPS else results[output : output + 1])
        if id(call) not in self._calls:
            arguments = call.inputs[1:] if call.type in _BRANCHES else call.inputs
            self._calls[id(call)] = arguments
            wanted += [arguments[place] for place in self._needed]
        return wanted


def _functions_of(op: Any) -> list[Any]:
    """Returns the graphs of the functions that an operation calls."""
    if not ("Call" in op.type or op.type in _BRANCHES or op.type in _LOOPS):
        return []
    named = [each for value in op.node_def.attr.values() for each in (value.func, *value.list.func)]
    found = [op.graph._get_function(each.name) for each in named if each.name]
    return [function.graph for function in found if function is not None]


def _collective_of(node: Any) -> list[tuple[str, int]]:
    if not node.op.startswith("Tfring") or "tensor_name" not in node.attr:
        return []
    name = node.attr["tensor_name"].s.decode()
    return [(name, int(node.attr["process_set_id"].i))]
