"""Checks that the results that clients of a store saw fit one order of the operations.

The search is by Wing and Gong, "Testing and Verifying Concurrent Objects" (1993), with the
memory of visited states by Lowe, "Testing for Linearizability" (2016).
"""

from __future__ import annotations

import random
from typing import NamedTuple


class Seen(NamedTuple):
    """One operation of one client; all clients take `begun` and `ended` from one counter."""

    begun: int
    ended: int
    op: str
    arguments: tuple
    result: object


def outcome(state, op, arguments):
    """Applies an operation to a dict, the model of a store; returns its result."""
    key, *rest = arguments
    value = state.get(key)
    if op == "set":
        return {**state, key: rest[0]}, None
    if op == "check":
        return state, value is not None
    if op == "delete_key":
        return {k: v for k, v in state.items() if k != key}, value is not None
    if op == "add":
        total = int(value or b"0") + rest[0]
        return {**state, key: b"%d" % total}, total
    assert op == "compare_set"
    expected, desired = rest
    if value == expected or (value is None and not expected):
        return {**state, key: desired}, desired
    return state, expected if value is None else value


def random_operation(dice: random.Random, keys=("a", "b")):
    """One operation and its arguments; values are numbers, so that `add` always works."""
    key, number = dice.choice(keys), b"%d" % dice.randrange(3)
    return dice.choice(
        [
            ("set", (key, number)),
            ("check", (key,)),
            ("delete_key", (key,)),
            ("add", (key, dice.randrange(-2, 3))),
            ("compare_set", (key, dice.choice([b"", number]), b"%d" % dice.randrange(3))),
        ]
    )


def run(store, op, arguments):
    """Runs an operation of a store."""
    if op == "check":
        return store.check(list(arguments))
    return getattr(store, op)(*arguments)


def is_linearizable(history: list[Seen]) -> bool:
    """Whether the model gives these results in some order that respects the times of the calls."""
    visited = set()
    waiting = [(frozenset(range(len(history))), {})]
    while waiting:
        left, state = waiting.pop()
        if not left:
            return True
        known = (left, frozenset(state.items()))
        if known in visited:
            continue
        visited.add(known)
        first_end = min(history[i].ended for i in left)
        for i in left:
            if history[i].begun < first_end:
                after, result = outcome(state, history[i].op, history[i].arguments)
                if result == history[i].result:
                    waiting.append((left - {i}, after))
    return False
