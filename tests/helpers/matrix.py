"""The table of all collectives: the inputs, results and gradients of each, in NumPy.

A row is a collective in one variant, for a list of dtypes. Rows speak of positions in the process
set, not of ranks: `xs[p][i]` is tensor i of the member at position p. A mode is a way to run a
function of tensors: eager, in a tf.function, in a TF1 session, compiled by XLA. A new mode goes
into MODES, with the rows that it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import tensorflow as tf

import tfring
from tfring.ops import library

Array = Any  # np.ndarray of any dtype
Arrays = list[Array]
Shapes = list[tuple[int, ...]]

FLOATS = ("float16", "bfloat16", "float32", "float64")
REDUCIBLE = (*FLOATS, "int8", "uint8", "int32", "int64")
MOVABLE = (
    *REDUCIBLE,
    "bool",
    "int16",
    "uint16",
    "uint32",
    "uint64",
    "complex64",
    "complex128",
)
# The dtypes whose gradients are compared, too; and those compared in the cheapest mode.
DIFFERENTIATED = ("float32", "complex64")
DIFFERENTIATED_EAGERLY = (*FLOATS, "complex64")
# The dtypes that are tried in process sets; sets treat all dtypes alike.
FEW = ("float32", "bfloat16", "int32", "bool", "complex64")


@dataclass(frozen=True)
class Team:
    """The ranks that take part."""

    ranks: tuple[int, ...]
    process_set: Any
    position: int

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def root(self) -> int:
        """The root of all rooted rows: the rank of the last member in the whole job."""
        return self.ranks[-1]


@dataclass(frozen=True, kw_only=True)
class Row:
    """A collective in one variant.

    Attributes:
        collective: its name.
        variant: how the row differs from others of the collective.
        dtypes: the dtypes that it takes.
        shapes: returns the shapes of a member's tensors from its position.
        call: calls it with a member's tensors.
        want: returns the results, one list per member, from all members' tensors.
        gradient: returns the gradients of the tensors from them and the gradients of the results;
            None if it has none.
        exact: whether the results equal NumPy's, to the last bit.
    """

    collective: str
    variant: str = ""
    dtypes: Sequence[str] = MOVABLE
    shapes: Callable[[int, Team], Shapes]
    call: Callable[[list[Any], Team], list[Any]]
    want: Callable[[list[Arrays], Team], list[Arrays]]
    gradient: Callable[[list[Arrays], list[Arrays], Team], list[Arrays]] | None = None
    exact: bool = True


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name) if name == "bfloat16" else name)


def numpy_of(result: Any) -> Array:
    """The result of eager code or a session as an array, scalars included."""
    return np.asarray(result.numpy() if tf.is_tensor(result) else result)


def wide(array: Array) -> Array:
    """The array in a dtype that NumPy computes with exactly."""
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def value(dtype: str, shape: tuple[int, ...], seed: int) -> Array:
    """Small whole numbers, which every dtype adds up and multiplies exactly."""
    rng = np.random.default_rng(seed)
    numbers: Array = rng.integers(0, 2, shape) if dtype == "bool" else rng.integers(1, 4, shape)
    if dtype.startswith("complex"):
        numbers = numbers + 1j * rng.integers(1, 4, shape)
    return np.asarray(numbers).astype(dtype_of(dtype))


def gradients_of_results(results: list[Arrays]) -> list[Arrays]:
    """A different number for each element of each member's results."""
    return [
        [np.arange(1.0, y.size + 1.0).reshape(y.shape) + 10.0 * p for y in ys]
        for p, ys in enumerate(results)
    ]


# Reductions.

FACTORS = {"prescale_factor": 2.0, "postscale_factor": 0.25}


def total(arrays: Arrays, op: int, factors: dict[str, float]) -> Array:
    stacked = np.stack([wide(a) for a in arrays]) * factors.get("prescale_factor", 1.0)
    reduced: Array
    if op == tfring.Average:
        reduced = stacked.sum(0) / len(arrays)
        if arrays[0].dtype.kind in "iu":
            reduced = np.trunc(reduced)
    elif op == tfring.Adasum:
        reduced = adasum(list(stacked))
    else:
        ufunc = {tfring.Sum: np.add, tfring.Min: np.minimum, tfring.Max: np.maximum}
        reduced = ufunc.get(op, np.multiply).reduce(stacked)
    return reduced * factors.get("postscale_factor", 1.0)


def adasum(level: Arrays) -> Array:
    while len(level) > 1:
        pairs = [level[i : i + 2] for i in range(0, len(level), 2)]
        level = [pair[0] if len(pair) == 1 else adasum_of_two(*pair) for pair in pairs]
    return level[0]


def adasum_of_two(a: Array, b: Array) -> Array:
    def share(x: Array) -> float:
        square = float((x * x).sum())
        return 1.0 - float((a * b).sum()) / (2.0 * square) if square else 1.0

    return share(a) * a + share(b) * b


def linear(xs: Arrays, upstream: Array, op: int, factors: dict[str, float]) -> Arrays:
    """The analytic gradients of a reduction by member; `upstream` is the gradient of its result."""
    stacked = np.stack([wide(x) for x in xs])
    scale = factors.get("prescale_factor", 1.0) * factors.get("postscale_factor", 1.0)
    if op in (tfring.Sum, tfring.Average):
        share = 1.0 / len(xs) if op == tfring.Average else 1.0
        return [upstream * share * scale for _ in xs]
    if op == tfring.Product:
        pre = factors.get("prescale_factor", 1.0)
        return [
            upstream * scale * np.prod(np.delete(stacked, p, 0) * pre, axis=0)
            for p in range(len(xs))
        ]
    extremum = stacked.min(0) if op == tfring.Min else stacked.max(0)
    holds = (stacked == extremum).astype(np.float64)
    return list(upstream * scale * holds / holds.sum(0))


def by_tensor(lists: list[Arrays]) -> list[Arrays]:
    """Transposes lists by member to lists by tensor, and back."""
    return [list(group) for group in zip(*lists, strict=True)]


def want_allreduce(op: int, factors: dict[str, float]) -> Callable[..., list[Arrays]]:
    def want(xs: list[Arrays], team: Team) -> list[Arrays]:
        return [[total(tensors, op, factors) for tensors in by_tensor(xs)] for _ in team.ranks]

    return want


def gradient_of_allreduce(op: int, factors: dict[str, float]) -> Callable[..., list[Arrays]]:
    """For Sum, Min, Max and Product, of the sum of all losses; Average averages the gradients."""

    def gradient(xs: list[Arrays], gs: list[Arrays], team: Team) -> list[Arrays]:
        del team
        return by_tensor(
            [
                linear(x, np.sum(g, axis=0), op, factors)
                for x, g in zip(by_tensor(xs), by_tensor(gs), strict=True)
            ]
        )

    return gradient


def parts(rows: int, team: Team) -> list[slice]:
    """The rows that each member gets; the first ones get one more if there is a remainder."""
    share, rest = divmod(rows, team.size)
    starts = [p * share + min(p, rest) for p in range(team.size + 1)]
    return [slice(starts[p], starts[p + 1]) for p in range(team.size)]


def want_reducescatter(op: int, factors: dict[str, float]) -> Callable[..., list[Arrays]]:
    def want(xs: list[Arrays], team: Team) -> list[Arrays]:
        return by_tensor(
            [
                [total(tensors, op, factors)[part] for part in parts(len(tensors[0]), team)]
                for tensors in by_tensor(xs)
            ]
        )

    return want


def gradient_of_reducescatter(op: int, factors: dict[str, float]) -> Callable[..., list[Arrays]]:
    """Of the sum of all losses."""

    def gradient(xs: list[Arrays], gs: list[Arrays], team: Team) -> list[Arrays]:
        del team
        return by_tensor(
            [
                linear(x, np.concatenate(g), op, factors)
                for x, g in zip(by_tensor(xs), by_tensor(gs), strict=True)
            ]
        )

    return gradient


def want_reduce(op: int, factors: dict[str, float]) -> Callable[..., list[Arrays]]:
    def want(xs: list[Arrays], team: Team) -> list[Arrays]:
        result = [total(tensors, op, factors) for tensors in by_tensor(xs)]
        zeros = [np.zeros_like(array) for array in result]
        return [result if rank == team.root else zeros for rank in team.ranks]

    return want


def gradient_of_reduce(op: int, factors: dict[str, float]) -> Callable[..., list[Arrays]]:
    """Of the sum of all losses; only the root's depends on the tensors."""

    def gradient(xs: list[Arrays], gs: list[Arrays], team: Team) -> list[Arrays]:
        del team
        return by_tensor(
            [linear(x, g, op, factors) for x, g in zip(by_tensor(xs), gs[-1], strict=True)]
        )

    return gradient


# Modes.


def run_eagerly(function: Callable[..., Any], arrays: Arrays) -> Any:
    return function([tf.constant(a) for a in arrays])


def run_in_function(function: Callable[..., Any], arrays: Arrays) -> Any:
    return tf.function(function)([tf.constant(a) for a in arrays])


def run_compiled(function: Callable[..., Any], arrays: Arrays) -> Any:
    return tf.function(function, jit_compile=True)([tf.constant(a) for a in arrays])


def run_in_session(function: Callable[..., Any], arrays: Arrays) -> Any:
    with tf.Graph().as_default():
        inputs = [tf.compat.v1.placeholder(a.dtype, a.shape) for a in arrays]
        results = function(inputs)
        with tf.compat.v1.Session() as session:
            return session.run(results, dict(zip(inputs, arrays, strict=True)))


@dataclass(frozen=True)
class Mode:
    """A way to run a function from a list of tensors to nested lists of tensors."""

    name: str
    run: Callable[[Callable[..., Any], Arrays], Any]
    takes: Callable[[Row], bool] = lambda row: True
    differentiated: Sequence[str] = DIFFERENTIATED


def xla_takes(row: Row) -> bool:
    """Whether XLA can compile the row: reductions, broadcasts, and allgather of equal shapes."""
    compiled = ("allreduce", "grouped_allreduce", "broadcast")
    equal_rows = row.collective == "allgather" and row.variant == "equal"
    return not library.xla_trouble() and (row.collective in compiled or equal_rows)


MODES = (
    Mode("eager", run_eagerly, differentiated=DIFFERENTIATED_EAGERLY),
    Mode("function", run_in_function),
    Mode("session", run_in_session),
    Mode("jit", run_compiled, xla_takes),
)
