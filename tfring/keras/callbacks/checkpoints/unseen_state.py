"""Ops in a tf.data.Dataset that have a state which no checkpoint has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

# They draw numbers from a state of their own, or change a variable: the counter of a Keras layer
# that augments, say. Stateless ops draw from what they are given.
_STATEFUL = re.compile(
    r"Random\w+|Multinomial|TruncatedNormal|ParameterizedTruncatedNormal|SampleDistorted\w+"
    r"|Stateful(?!PartitionedCall)\w+|Rng\w+|Assign\w*VariableOp"
)
_NOT_DRAWING = re.compile(r"RandomDataset\w*")


def stateful_ops(data: Any) -> list[str]:
    """Returns the kinds of these ops in the functions of a dataset, with the op's name.

    Other data than a tf.data.Dataset has none that tfring can see.
    """
    found: dict[str, None] = {}
    for function in _functions(data):
        for op in _operations(function.function.graph):
            if _STATEFUL.fullmatch(op.type) and not _NOT_DRAWING.fullmatch(op.type):
                found[f"{op.type} ({op.name})"] = None
    return list(found)


def _operations(graph: Any) -> Iterator[Any]:
    """Yields the ops of a graph and of the functions that it calls."""
    yield from graph.get_operations()
    for function in graph._functions.values():
        yield from _operations(function.graph)


def _functions(data: Any) -> Iterator[Any]:
    """Yields the functions of a dataset and of those that it is made of."""
    waiting, seen = [data], set()
    for dataset in waiting:
        if isinstance(dataset, tf.data.Dataset) and id(dataset) not in seen:
            seen.add(id(dataset))
            yield from dataset._functions()
            waiting += dataset._inputs()
