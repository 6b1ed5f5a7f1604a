"""The rows of the table of all collectives (see matrix.py)."""

from __future__ import annotations

from collections.abc import Callable
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
    "scaled": (tfring.Sum, matrix.FACTORS),
}


def same(*shapes: tuple[int, ...]) -> Callable[[int, Team], Shapes]:
    """The same shapes on every rank."""
    return lambda position, team: list(shapes)


def uneven(position: int, team: Team) -> Shapes:
    """Other numbers of rows on every rank, none on one of them."""
    return [((position + 1) % 3, 2)]


def one_of(function: Callable[..., Any], **arguments: Any) -> Callable[[list[Any], Team], Any]:
    """Calls a collective of one tensor."""
    return lambda xs, team: [function(xs[0], process_set=team.process_set, **arguments)]


def many_of(function: Callable[..., Any], **arguments: Any) -> Callable[[list[Any], Team], Any]:
    """Calls a collective of a list."""
    return lambda xs, team: function(xs, process_set=team.process_set, **arguments)


def reductions() -> list[Row]:
    rows = []
    shapes = {"": same((5, 3)), "scalar": same(()), "empty": same((0, 3))}
    for name, (op, factors) in OPS.items():
        more = {"op": op, **factors}
        dtypes = matrix.FLOATS if factors else matrix.REDUCIBLE
        exact = op != tfring.Average
        gradient = matrix.gradient_of_allreduce(op, factors)
        for kind, shape in shapes.items():
            if kind and name not in ("Sum", "Average"):
                continue
            variant = f"{name} {kind}"
            rows.append(
                Row(
                    *("allreduce", variant, dtypes, shape, one_of(tfring.allreduce, **more)),
                    matrix.want_allreduce(op, factors),
                    *(gradient, exact),
                )
            )
        rows.append(
            Row(
                *("grouped_allreduce", name, dtypes, same((5, 3), (), (0, 3), (7,))),
                many_of(tfring.grouped_allreduce, **more),
                matrix.want_allreduce(op, factors),
                *(gradient, exact),
            )
        )
        rows.append(
            Row(
                *("reduce", name, dtypes, same((5, 3))),
                lambda xs, team, more=more: [
                    tfring.reduce(xs[0], team.root, process_set=team.process_set, **more)
                ],
                matrix.want_reduce(op, factors),
                *(matrix.gradient_of_reduce(op, factors), exact),
            )
        )
        rows += reducescatters(name, op, factors)
    adasum: tuple[int, dict[str, float]] = (tfring.Adasum, {})
    for collective, call in (
        ("allreduce", one_of(tfring.allreduce, op=tfring.Adasum)),
        ("grouped_allreduce", many_of(tfring.grouped_allreduce, op=tfring.Adasum)),
    ):
        shape = same((6, 4)) if collective == "allreduce" else same((6, 4), (3,), ())
        want = matrix.want_allreduce(*adasum)
        rows.append(Row(collective, "Adasum", matrix.FLOATS, shape, call, want, None, exact=False))
    return rows


def reducescatters(name: str, op: int, factors: dict[str, float]) -> list[Row]:
    more = {"op": op, **factors}
    dtypes = matrix.FLOATS if factors else matrix.REDUCIBLE
    want = matrix.want_reducescatter(op, factors)
    gradient = matrix.gradient_of_reducescatter(op, factors)
    last = (want, gradient, op != tfring.Average)
    one, many = (
        one_of(tfring.reducescatter, **more),
        many_of(tfring.grouped_reducescatter, **more),
    )
    return [
        Row("reducescatter", name, dtypes, same((5, 3)), one, *last),
        Row("grouped_reducescatter", name, dtypes, same((5, 3), (0, 3), (8,)), many, *last),
    ]


def want_allgather(xs: list[Arrays], team: Team) -> list[Arrays]:
    gathered = [np.concatenate(tensors) for tensors in matrix.by_tensor(xs)]
    return [gathered for _ in team.ranks]


def own_rows(xs: list[Arrays], wholes: Arrays) -> list[Arrays]:
    """Cuts wholes, one per tensor, into what belongs to each member."""
    cuts = [np.cumsum([len(x) for x in tensors])[:-1] for tensors in matrix.by_tensor(xs)]
    return matrix.by_tensor([np.split(w, c) for w, c in zip(wholes, cuts, strict=True)])


def gradient_of_allgather(xs: list[Arrays], gs: list[Arrays], team: Team) -> list[Arrays]:
    """Of the mean of all losses."""
    del team
    return own_rows(xs, [np.mean(g, axis=0) for g in matrix.by_tensor(gs)])


def want_broadcast(xs: list[Arrays], team: Team) -> list[Arrays]:
    return [xs[-1] for _ in team.ranks]


def gradient_of_broadcast(xs: list[Arrays], gs: list[Arrays], team: Team) -> list[Arrays]:
    """Of the mean of all losses, on the root."""
    del xs
    means = [np.mean(g, axis=0) for g in matrix.by_tensor(gs)]
    zeros = [np.zeros_like(mean) for mean in means]
    return [means if rank == team.root else zeros for rank in team.ranks]


def want_gather(xs: list[Arrays], team: Team) -> list[Arrays]:
    gathered = np.concatenate([x[0] for x in xs])
    return [[gathered if rank == team.root else gathered[:0]] for rank in team.ranks]


def gradient_of_gather(xs: list[Arrays], gs: list[Arrays], team: Team) -> list[Arrays]:
    """Of the sum of all losses, in which only the root's depends on the tensors."""
    del team
    return own_rows(xs, gs[-1])


def scattered_rows(team: Team) -> list[int]:
    """How many rows each member gets from the root."""
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
    """How many rows one member sends to another, where they are uneven."""
    return (source + 2 * target) % 3


def alltoall_uneven(xs: list[Any], team: Team) -> list[Any]:
    splits = [exchange(team.position, p) for p in range(team.size)]
    return list(tfring.alltoall(xs[0], splits, process_set=team.process_set))


def blocks(arrays: Arrays, rows: Callable[[int, int], int]) -> list[Arrays]:
    """[s][t]: what of the array of s goes to t."""
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


def gathering() -> list[Row]:
    every = matrix.MOVABLE
    return [
        Row(
            "allgather",
            "uneven",
            every,
            uneven,
            one_of(tfring.allgather),
            want_allgather,
            gradient_of_allgather,
        ),
        Row(
            "allgather",
            "equal",
            every,
            same((2,)),
            one_of(tfring.allgather),
            want_allgather,
            gradient_of_allgather,
        ),
        Row(
            "grouped_allgather",
            "",
            every,
            lambda p, t: [*uneven(p, t), (2,), (0, 1)],
            many_of(tfring.grouped_allgather),
            want_allgather,
            gradient_of_allgather,
        ),
        Row(
            "gather",
            "uneven",
            every,
            uneven,
            lambda xs, team: [tfring.gather(xs[0], team.root, process_set=team.process_set)],
            want_gather,
            gradient_of_gather,
        ),
    ]


def cutting() -> list[Row]:
    every = matrix.MOVABLE
    equal: Callable[[Team], list[int]] = lambda team: [2] * team.size  # noqa: E731
    two: Callable[[int, int], int] = lambda s, t: 2  # noqa: E731
    return [
        Row(
            "scatter",
            "equal",
            every,
            scatter_shapes(equal),
            lambda xs, team: [tfring.scatter(xs[0], team.root, process_set=team.process_set)],
            want_scatter(equal),
            gradient_of_scatter,
        ),
        Row(
            "scatter",
            "uneven",
            every,
            scatter_shapes(scattered_rows),
            lambda xs, team: [
                tfring.scatter(xs[0], team.root, scattered_rows(team), process_set=team.process_set)
            ],
            want_scatter(scattered_rows),
            gradient_of_scatter,
        ),
        Row(
            "alltoall",
            "equal",
            every,
            lambda p, team: [(2 * team.size, 3)],
            one_of(tfring.alltoall),
            want_alltoall(two, False),
            gradient_of_alltoall(two),
        ),
        Row(
            "alltoall",
            "uneven",
            every,
            lambda p, team: [(sum(exchange(p, t) for t in range(team.size)), 3)],
            alltoall_uneven,
            want_alltoall(exchange, True),
            gradient_of_alltoall(exchange),
        ),
    ]


def same_shapes() -> list[Row]:
    every = matrix.MOVABLE
    rows = []
    for variant, shape in (("", (2, 3)), ("scalar", ()), ("empty", (0, 3))):
        rows += [
            Row(
                "broadcast",
                variant,
                every,
                same(shape),
                lambda xs, team: [tfring.broadcast(xs[0], team.root, process_set=team.process_set)],
                want_broadcast,
                gradient_of_broadcast,
            ),
            Row(
                "send and recv",
                variant,
                every,
                same(shape),
                send_recv,
                lambda xs, team: [*xs[:-1], xs[0]],
            ),
            Row("barrier", variant, ("float32",), same(shape), after_barrier, lambda xs, team: xs),
        ]
    return rows


ROWS = [*reductions(), *gathering(), *cutting(), *same_shapes()]
COLLECTIVES = sorted({row.collective for row in ROWS})
