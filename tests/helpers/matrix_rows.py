"""The rows of the table of all collectives (see matrix.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import matrix
import numpy as np
import tensorflow as tf
from matrix import Arrays, Row, Shapes, Team

import tfring

OPS = {
    "Sum": (tfring.Sum, {}),
    "Average": (tfring.Average, {}),
    "Min": (tfring.Min, {}),
    "Max": (tfring.Max, {}),
    "Product": (tfring.Product, {}),
    "scaled Sum": (tfring.Sum, matrix.FACTORS),
    "scaled Average": (tfring.Average, matrix.FACTORS),
}


def same(*shapes: tuple[int, ...]) -> Callable[[int, Team], Shapes]:
    """The same shapes on every rank."""
    return lambda position, team: list(shapes)


def uneven(position: int, team: Team) -> Shapes:
    """A different number of rows on each rank, 0 on one of them."""
    return [((position + 1) % 3, 2)]


def one_of(function: Callable[..., Any], **arguments: Any) -> Callable[[list[Any], Team], Any]:
    """Calls a collective of one tensor."""
    return lambda xs, team: [function(xs[0], process_set=team.process_set, **arguments)]


def many_of(function: Callable[..., Any], **arguments: Any) -> Callable[[list[Any], Team], Any]:
    """Calls a collective of a list."""
    return lambda xs, team: function(xs, process_set=team.process_set, **arguments)


def with_root(function: Callable[..., Any], **arguments: Any) -> Callable[[list[Any], Team], Any]:
    """Calls a collective of one tensor that has a root."""
    return lambda xs, team: [function(xs[0], team.root, process_set=team.process_set, **arguments)]


def allreduces(name: str, op: int, factors: dict[str, float]) -> list[Row]:
    """The rows of allreduce with one operation."""
    more = {"op": op, **factors}
    one = Row(
        collective="allreduce",
        variant=name,
        dtypes=matrix.FLOATS if factors else matrix.REDUCIBLE,
        shapes=same((5, 3)),
        call=one_of(tfring.allreduce, **more),
        want=matrix.want_allreduce(op, factors),
        gradient=matrix.gradient_of_allreduce(op, factors),
        exact=op != tfring.Average,
    )
    many = replace(
        one,
        collective="grouped_allreduce",
        shapes=same((5, 3), (), (0, 3), (7,)),
        call=many_of(tfring.grouped_allreduce, **more),
    )
    if name not in ("Sum", "Average"):
        return [one, many]
    scalar = replace(one, variant=f"{name} scalar", shapes=same(()))
    empty = replace(one, variant=f"{name} empty", shapes=same((0, 3)))
    return [one, many, scalar, empty]


def adasums() -> list[Row]:
    """The rows of Adasum, which takes no whole numbers and has no gradient."""
    one, many = allreduces("Adasum", tfring.Adasum, {})
    inexact = {"dtypes": matrix.FLOATS, "gradient": None, "exact": False}
    return [
        replace(one, shapes=same((6, 4)), **inexact),
        replace(many, shapes=same((6, 4), (3,), ()), **inexact),
    ]


def other_reductions(name: str, op: int, factors: dict[str, float]) -> list[Row]:
    """The rows of reduce and reducescatter with one operation."""
    more = {"op": op, **factors}
    to_root = Row(
        collective="reduce",
        variant=name,
        dtypes=matrix.FLOATS if factors else matrix.REDUCIBLE,
        shapes=same((5, 3)),
        call=with_root(tfring.reduce, **more),
        want=matrix.want_reduce(op, factors),
        gradient=matrix.gradient_of_reduce(op, factors),
        exact=op != tfring.Average,
    )
    scattered = replace(
        to_root,
        collective="reducescatter",
        call=one_of(tfring.reducescatter, **more),
        want=matrix.want_reducescatter(op, factors),
        gradient=matrix.gradient_of_reducescatter(op, factors),
    )
    many = replace(
        scattered,
        collective="grouped_reducescatter",
        shapes=same((5, 3), (0, 3), (8,)),
        call=many_of(tfring.grouped_reducescatter, **more),
    )
    scalar = replace(to_root, variant=f"{name} scalar", shapes=same(()))
    return [to_root, scalar, scattered, many]


def want_allgather(xs: list[Arrays], team: Team) -> list[Arrays]:
    gathered = [np.concatenate(tensors) for tensors in matrix.by_tensor(xs)]
    return [gathered for _ in team.ranks]


def own_rows(xs: list[Arrays], wholes: Arrays) -> list[Arrays]:
    """Cuts whole tensors into the parts of the members."""
    cuts = [np.cumsum([len(x) for x in tensors])[:-1] for tensors in matrix.by_tensor(xs)]
    return matrix.by_tensor([np.split(w, c) for w, c in zip(wholes, cuts, strict=True)])


def gradient_of_allgather(xs: list[Arrays], gs: list[Arrays], team: Team) -> list[Arrays]:
    """Of the sum of all losses."""
    del team
    return own_rows(xs, [np.sum(g, axis=0) for g in matrix.by_tensor(gs)])


def want_broadcast(xs: list[Arrays], team: Team) -> list[Arrays]:
    return [xs[-1] for _ in team.ranks]


def gradient_of_broadcast(xs: list[Arrays], gs: list[Arrays], team: Team) -> list[Arrays]:
    """Of the sum of all losses, on the root."""
    del xs
    totals = [np.sum(g, axis=0) for g in matrix.by_tensor(gs)]
    zeros = [np.zeros_like(total) for total in totals]
    return [totals if rank == team.root else zeros for rank in team.ranks]


def want_gather(xs: list[Arrays], team: Team) -> list[Arrays]:
    gathered = np.concatenate([x[0] for x in xs])
    return [[gathered if rank == team.root else gathered[:0]] for rank in team.ranks]


def gradient_of_gather(xs: list[Arrays], gs: list[Arrays], team: Team) -> list[Arrays]:
    """Of the sum of all losses; only the root's depends on the tensors."""
    del team
    return own_rows(xs, gs[-1])


def scattered_rows(team: Team) -> list[int]:
    """The number of rows that each member gets from the root."""
    return [p % 3 for p in range(team.size)]


def scatter_shapes(rows: Callable[[Team], list[int]]) -> Callable[[int, Team], Shapes]:
    return lambda position, team: [(sum(rows(team)) if position == team.size - 1 else position, 2)]


def want_scatter(rows: Callable[[Team], list[int]]) -> Callable[..., list[Arrays]]:
    def want(xs: list[Arrays], team: Team) -> list[Arrays]:
        cuts = np.cumsum(rows(team))[:-1]
        return [[part] for part in np.split(xs[-1][0], cuts)]

    return want


def gradient_of_scatter(xs: list[Arrays], gs: list[Arrays], team: Team) -> list[Arrays]:
    """Of the sum of all losses, on the root."""
    whole = np.concatenate([g[0] for g in gs])
    return [
        [whole if rank == team.root else np.zeros(x[0].shape)]
        for rank, x in zip(team.ranks, xs, strict=True)
    ]


def exchange(source: int, target: int) -> int:
    """The number of rows that one member sends to another, uneven."""
    return (source + 2 * target) % 3


def alltoall_uneven(xs: list[Any], team: Team) -> list[Any]:
    splits = [exchange(team.position, p) for p in range(team.size)]
    return list(tfring.alltoall(xs[0], splits, process_set=team.process_set))


def blocks(arrays: Arrays, rows: Callable[[int, int], int]) -> list[Arrays]:
    """[s][t]: the rows of member s that go to member t."""
    count = len(arrays)
    return [
        np.split(array, np.cumsum([rows(s, t) for t in range(count)])[:-1])
        for s, array in enumerate(arrays)
    ]


def want_alltoall(rows: Callable[[int, int], int], splits: bool) -> Callable[..., list[Arrays]]:
    def want(xs: list[Arrays], team: Team) -> list[Arrays]:
        sent = blocks([x[0] for x in xs], rows)
        members = range(team.size)
        received = [[np.concatenate([sent[s][t] for s in members])] for t in members]
        if splits:
            for t in members:
                received[t].append(np.array([rows(s, t) for s in members], np.int32))
        return received

    return want


def gradient_of_alltoall(rows: Callable[[int, int], int]) -> Callable[..., list[Arrays]]:
    """Of the sum of all losses: every row's gradient goes back."""

    def gradient(xs: list[Arrays], gs: list[Arrays], team: Team) -> list[Arrays]:
        del xs
        back = blocks([g[0] for g in gs], lambda t, s: rows(s, t))
        members = range(team.size)
        return [[np.concatenate([back[t][s] for t in members])] for s in members]

    return gradient


def send_recv(xs: list[Any], team: Team) -> list[Any]:
    """The first member's tensor goes to the last one."""
    first, last = team.ranks[0], team.ranks[-1]
    if first == last or team.position not in (0, team.size - 1):
        return [tf.identity(xs[0])]
    if team.position:
        shape = xs[0].shape.as_list()
        known = shape and [None, *shape[1:]]
        return [tfring.recv(first, xs[0].dtype, known, process_set=team.process_set)]
    sent = tfring.send(xs[0], last, process_set=team.process_set)
    with tf.control_dependencies([] if sent is None else [sent]):
        return [tf.identity(xs[0])]


def after_barrier(xs: list[Any], team: Team) -> list[Any]:
    passed = tfring.barrier(team.process_set)
    with tf.control_dependencies([] if passed is None else [passed]):
        return [tf.identity(xs[0])]


def two(source: int, target: int) -> int:
    """The number of rows that one member sends to another, even."""
    return 2


def two_each(team: Team) -> list[int]:
    """The number of rows that each member gets from the root, even."""
    return [2] * team.size


def gathering() -> list[Row]:
    rows = Row(
        collective="allgather",
        variant="uneven",
        shapes=uneven,
        call=one_of(tfring.allgather),
        want=want_allgather,
        gradient=gradient_of_allgather,
    )
    many = replace(
        rows,
        collective="grouped_allgather",
        shapes=lambda p, team: [*uneven(p, team), (2,), (0, 1)],
        call=many_of(tfring.grouped_allgather),
    )
    to_root = replace(
        rows,
        collective="gather",
        call=with_root(tfring.gather),
        want=want_gather,
        gradient=gradient_of_gather,
    )
    return [rows, replace(rows, variant="equal", shapes=same((2,))), many, to_root]


def cutting() -> list[Row]:
    def scatter_parts(xs: list[Any], team: Team) -> list[Any]:
        return with_root(tfring.scatter, splits=scattered_rows(team))(xs, team)

    scatters = [
        Row(
            collective="scatter",
            variant=variant,
            shapes=scatter_shapes(rows),
            call=call,
            want=want_scatter(rows),
            gradient=gradient_of_scatter,
        )
        for variant, rows, call in (
            ("equal", two_each, with_root(tfring.scatter)),
            ("uneven", scattered_rows, scatter_parts),
        )
    ]
    equal = Row(
        collective="alltoall",
        variant="equal",
        shapes=lambda p, team: [(2 * team.size, 3)],
        call=one_of(tfring.alltoall),
        want=want_alltoall(two, False),
        gradient=gradient_of_alltoall(two),
    )
    parts = Row(
        collective="alltoall",
        variant="uneven",
        shapes=lambda p, team: [(sum(exchange(p, t) for t in range(team.size)), 3)],
        call=alltoall_uneven,
        want=want_alltoall(exchange, True),
        gradient=gradient_of_alltoall(exchange),
    )
    return [*scatters, equal, parts]


def same_shapes() -> list[Row]:
    """The rows of collectives whose results have the shapes of their inputs."""
    rooted = Row(
        collective="broadcast",
        shapes=same((2, 3)),
        call=with_root(tfring.broadcast),
        want=want_broadcast,
        gradient=gradient_of_broadcast,
    )
    message = Row(
        collective="send and recv",
        shapes=same((2, 3)),
        call=send_recv,
        want=lambda xs, team: [*xs[:-1], xs[0]],
    )
    barrier = Row(
        collective="barrier",
        dtypes=("float32",),
        shapes=same((2, 3)),
        call=after_barrier,
        want=lambda xs, team: xs,
    )
    rows = [rooted, message, barrier]
    rows += [replace(row, variant="scalar", shapes=same(())) for row in (rooted, message)]
    return rows + [replace(row, variant="empty", shapes=same((0, 3))) for row in (rooted, message)]


ROWS = [
    *(row for name, (op, factors) in OPS.items() for row in allreduces(name, op, factors)),
    *(row for name, (op, factors) in OPS.items() for row in other_reductions(name, op, factors)),
    *adasums(),
    *gathering(),
    *cutting(),
    *same_shapes(),
]
COLLECTIVES = sorted({row.collective for row in ROWS})
