"""Finds the collectives from which a graph's tensors were computed.

A depth-first search that starts at the tensors and goes from each operation to the operations that
compute its inputs. Where it arrives at the input of a function's body, it goes on at the tensor
outside that the function captured. Where it arrives at an output of a call or a branch, it goes
through the bodies that are called: from what this output returns, to those of the call's inputs
that it depends on. (A function may reduce gradients and return a loss beside them.) Each output is
visited once, when a step is traced; nothing is left for when it runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
_LOOPS = ("While", "StatelessWhile")


def collectives_behind(tensors: Sequence[Any]) -> Iterator[tuple[str, int]]:
    """Yields name and process set of all collectives from which symbolic tensors were computed.

    The value of a tf.stop_gradient counts only where it may be one of the tensors, going by its
    shape: a loss that is weighted by it was not computed from it in the sense of a gradient.
    """
    shapes = {str(tensor.shape) for tensor in tensors}
    seen: set[int] = set()
    stack = list(tensors)
    captures: dict[int, dict[int, Any]] = {}  # by graph: inner placeholder -> outer tensor
    bodies: dict[tuple[str, int], _Found] = {}
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
        stack.extend(op.inputs[position] for position in found.inputs)


@dataclasses.dataclass
class _Found:
    """What one output depends on: collectives, and positions among the inputs."""

    collectives: set[tuple[str, int]] = dataclasses.field(default_factory=set)
    inputs: set[int] = dataclasses.field(default_factory=set)


_Bodies = dict[tuple[str, int], _Found]


def _at_node(graph: Any, node: Any, inputs: int, output: int, bodies: _Bodies) -> _Found:
    """Returns what an output of a node depends on.

    Args:
        graph: where the functions are known that the node may call.
        node: a NodeDef, of the graph or of a function's body.
        inputs: how many inputs it has, without control inputs.
        output: which of its outputs.
        bodies: what has been found in functions already, by name and output.
    """
    names = _functions_of(node)
    called = names and ("Call" in node.op or node.op in _BRANCHES or node.op in _LOOPS)
    if not called:
        return _Found(set(_collective_of(node)), set(range(inputs)))
    found = _Found(inputs=set(range(inputs)) if node.op in _LOOPS else set())
    for name in names:
        function = graph._get_function(name)
        if function is None:
            continue
        definition = function.cached_definition
        outputs = range(len(definition.signature.output_arg))
        wanted = [output] if node.op not in _LOOPS and output in outputs else outputs
        first = 1 if node.op in _BRANCHES else 0  # what chooses the branch is no argument
        for each in wanted:
            inside = _in_body(graph, definition, each, bodies)
            found.collectives |= inside.collectives
            found.inputs |= {first + p for p in inside.inputs if first + p < inputs}
    return found


def _in_body(graph: Any, definition: Any, output: int, bodies: _Bodies) -> _Found:
    """Returns what an output of a function depends on, the inputs being its arguments."""
    signature = definition.signature
    key = (signature.name, output)
    if key in bodies:
        return bodies[key]
    found = bodies[key] = _Found()  # before it is filled, for a function that calls itself
    arguments = {argument.name: i for i, argument in enumerate(signature.input_arg)}
    nodes = {node.name: node for node in definition.node_def}
    stack = [definition.ret[signature.output_arg[output].name]]
    seen: set[str] = set()
    while stack:
        reference = stack.pop()  # "argument", or "node:name of the output:position"
        if reference in seen:
            continue
        seen.add(reference)
        name, *place = reference.split(":")
        if name in arguments:
            found.inputs.add(arguments[name])
            continue
        node = nodes[name]
        sources = [source for source in node.input if not source.startswith("^")]
        position = int(place[-1]) if place else 0
        behind = _at_node(graph, node, len(sources), position, bodies)
        found.collectives |= behind.collectives
        stack.extend(sources[i] for i in behind.inputs)
    return found


def _collective_of(node: Any) -> list[tuple[str, int]]:
    if not node.op.startswith("Tfring") or "tensor_name" not in node.attr:
        return []
    name = node.attr["tensor_name"].s.decode()
    return [(name, int(node.attr["process_set_id"].i))]


def _functions_of(node: Any) -> list[str]:
    several = [each.name for value in node.attr.values() for each in value.list.func]
    return [value.func.name for value in node.attr.values() if value.func.name] + several
