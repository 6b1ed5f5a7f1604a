"""Finds the collectives that a graph's tensors were computed from.

A depth-first search from the tensors to the operations that compute their inputs. At the input of a
function's body, it goes on at the tensor outside that the function captured. At an output of a call
or a branch, it searches the called bodies: from the value that this output returns to the call's
inputs that the value depends on. (A function may reduce gradients and return a loss beside them.)
The search keeps the results for each output of a body, so it visits each output once. It runs when
a step is traced, never when it runs.
"""

from __future__ import annotations

import dataclasses
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
    captures: dict[int, dict[int, Any]] = {}  # by graph: inner placeholder -> outer tensor
    bodies: _Bodies = {}
    while stack:
        tensor = stack.pop()
        if id(tensor) in seen or hasattr(tensor, "numpy"):
            continue
        seen.add(id(tensor))
        op = tensor.op
        if op.type == "StopGradient" and str(tensor.shape) not in shapes:
            continue
        if op.type == "Placeholder":
            graph = op.graph
            if id(graph) not in captures:
                pairs = getattr(graph, "captures", ())
                captures[id(graph)] = {id(inner): outer for outer, inner in pairs}
            outer = captures[id(graph)].get(id(tensor))
            if outer is not None:
                stack.append(outer)
        found = _at_node(op.graph, op.node_def, len(op.inputs), tensor.value_index, bodies)
        yield from found.collectives
        stack.extend(op.inputs[position] for position in _positions(found.inputs))


@dataclasses.dataclass
class _Found:
    """What one output depends on: collectives, and indices of inputs as bits of a number.

    A body may have thousands of inputs, and as many outputs that depend on all of them.
    """

    collectives: frozenset[tuple[str, int]] = frozenset()
    inputs: int = 0

    def add(self, other: _Found) -> None:
        if not other.collectives <= self.collectives:
            self.collectives |= other.collectives
        self.inputs |= other.inputs


class _Body:
    """A function's body, and the search's results in it."""

    def __init__(self, definition: Any) -> None:
        signature = definition.signature
        self.nodes = {node.name: node for node in definition.node_def}
        self.results = [definition.ret[output.name] for output in signature.output_arg]
        self.found = {
            argument.name: _Found(inputs=1 << i) for i, argument in enumerate(signature.input_arg)
        }


_Bodies = dict[str, _Body]


def _at_node(graph: Any, node: Any, inputs: int, output: int, bodies: _Bodies) -> _Found:
    """Returns what an output of a node depends on.

    Args:
        graph: has the functions that the node may call.
        node: a NodeDef, of the graph or of a function's body.
        inputs: the number of its inputs, without control inputs.
        output: the index of the output.
        bodies: the bodies that were already searched, by name.
    """
    names = _functions_of(node)
    called = names and ("Call" in node.op or node.op in _BRANCHES or node.op in _LOOPS)
    if not called:
        return _Found(frozenset(_collective_of(node)), _all(inputs))
    found = _Found(inputs=_all(inputs) if node.op in _LOOPS else 0)
    for name in names:
        function = graph._get_function(name)
        if function is None:
            continue
        if name not in bodies:
            bodies[name] = _Body(function.cached_definition)
        body = bodies[name]
        outputs = range(len(body.results))
        wanted = [output] if node.op not in _LOOPS and output in outputs else outputs
        first = (
            1 if node.op in _BRANCHES else 0
        )  # the input that selects the branch is not an argument
        for each in wanted:
            inside = _in_body(graph, body, body.results[each], bodies)
            found.add(_Found(inside.collectives, inside.inputs << first & _all(inputs)))
    return found


def _in_body(graph: Any, body: _Body, wanted: str, bodies: _Bodies) -> _Found:
    """Returns what an output in a function's body depends on; the inputs are its arguments.

    Args:
        graph: has the functions that the body may call.
        body: the body.
        wanted: "argument", or "node:name of the output:position".
        bodies: the bodies that were already searched, by name.
    """
    known = body.found
    opened: dict[str, _Found] = {}  # the dependencies of each output on the way to this one
    stack = [wanted]
    while stack:
        reference = stack[-1]
        if reference in known and reference not in opened:
            stack.pop()
            continue
        name, *place = reference.split(":")
        node = body.nodes[name]
        sources = [source for source in node.input if not source.startswith("^")]
        if reference not in known:
            known[reference] = _Found()  # set before it is filled: a function may call itself
            position = int(place[-1]) if place else 0
            behind = _at_node(graph, node, len(sources), position, bodies)
            opened[reference] = behind
            stack.extend(s for p in _positions(behind.inputs) if (s := sources[p]) not in known)
            continue
        stack.pop()
        behind = opened.pop(reference)
        found = known[reference]
        found.add(_Found(behind.collectives))
        for position in _positions(behind.inputs):
            found.add(known[sources[position]])
    return known[wanted]


def _all(inputs: int) -> int:
    """Returns one bit for each input."""
    return (1 << inputs) - 1


def _positions(bits: int) -> list[int]:
    return [i for i, bit in enumerate(reversed(f"{bits:b}")) if bit == "1"]


def _collective_of(node: Any) -> list[tuple[str, int]]:
    if not node.op.startswith("Tfring") or "tensor_name" not in node.attr:
        return []
    name = node.attr["tensor_name"].s.decode()
    return [(name, int(node.attr["process_set_id"].i))]


def _functions_of(node: Any) -> list[str]:
    several = [each.name for value in node.attr.values() for each in value.list.func]
    return [value.func.name for value in node.attr.values() if value.func.name] + several
