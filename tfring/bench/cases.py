"""What is measured: a case has candidates that take turns, and becomes one row or several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tfring.bench import models
from tfring.bench.options import BUS_FACTORS, BenchOptions, shape_of
from tfring.bench.result import ALONE, BARE, CALL, COPY, Row, measured_row
from tfring.bench.samples import Array
from tfring.collectives.allgather import allgather
from tfring.collectives.allreduce import allreduce, grouped_allreduce
from tfring.collectives.alltoall import alltoall
from tfring.collectives.broadcast import broadcast
from tfring.collectives.objects import allgather_json
from tfring.collectives.reducescatter import reducescatter
from tfring.collectives.rooted import gather, reduce, scatter
from tfring.ops.reduce_ops import Sum
from tfring.runtime.texts.sizes import size_text
from tfring.runtime.topology import rank, size

Call = Callable[[], object]

# With one tensor; the name is the same on all ranks, the root is rank 0.
_CALLS: dict[str, Callable[[Any, str], Any]] = {
    "allreduce": lambda x, name: allreduce(x, op=Sum, name=name),
    "allgather": lambda x, name: allgather(x, name=name),
    "reducescatter": lambda x, name: reducescatter(x, op=Sum, name=name),
    "alltoall": lambda x, name: alltoall(x, name=name),
    "broadcast": lambda x, name: broadcast(x, 0, name=name),
    "reduce": lambda x, name: reduce(x, 0, op=Sum, name=name),
    "gather": lambda x, name: gather(x, 0, name=name),
    "scatter": lambda x, name: scatter(x, 0, name=name),
}
_LONGEST_ROUNDS = 200


@dataclass
class Case:
    """One thing to measure.

    Attributes:
        section: The table that its rows are in.
        label: What it is, for people.
        bytes: How many.
        tensors: How many.
        ways: Candidates that become a row each.
        build: Makes the candidates by name: the ways, "bare", and "copy" or "alone".
        bus: For bandwidths: the part of the bytes that crosses the busiest link.
        rounds: How many are measured, if there is time.
        calls: In a row, in each round.
    """

    section: str
    label: str
    bytes: int
    tensors: int
    build: Callable[[], dict[str, Call]]
    ways: Sequence[str] = (CALL,)
    bus: float | None = None
    rounds: int = _LONGEST_ROUNDS
    calls: int = 1

    def rows(self, times: dict[str, Array]) -> list[Row]:
        """Returns the rows.

        Args:
            times: Of each candidate by round and call, in milliseconds.
        """
        return [
            measured_row(
                self.section,
                way,
                self.bytes,
                self.tensors,
                times={**times, CALL: times[way]},
                bus=self.bus,
            )
            for way in self.ways
        ]


def cases(options: BenchOptions) -> Iterator[Case]:
    """Yields what the options ask for, the same on all ranks."""
    for collective in options.collectives:
        seen = set()
        for wanted in options.sizes():
            shape = shape_of(collective, wanted, options.dtype, size())
            if shape.bytes not in seen:
                seen.add(shape.bytes)
                yield collective_case(collective, wanted, options.dtype)
    for name in options.models:
        yield model_case(name, options.dtype)
    for kind in options.steps:
        yield step_case(kind)


def collective_case(collective: str, wanted: int, dtype: str) -> Case:
    """Returns a collective of one tensor in a tf.function."""
    shape = shape_of(collective, wanted, dtype, size())

    def build() -> dict[str, Call]:
        tensor = _tensor(shape.given, dtype)

        def bare(x: Any) -> Any:
            return x + x

        def with_call(x: Any) -> Any:
            return _CALLS[collective](x + x, f"bench.{collective}.{shape.bytes}")

        return {
            CALL: compiled(with_call, tensor),
            BARE: compiled(bare, tensor),
            COPY: copying([shape.bytes]),
        }

    return Case(
        section=f"{collective} {dtype}",
        label=f"{collective} of {size_text(shape.bytes)}",
        bytes=shape.bytes,
        tensors=1,
        build=build,
        bus=BUS_FACTORS[collective](size()),
        rounds=rounds_for(shape.bytes),
        calls=5 if shape.bytes <= 256 << 10 else 1,
    )


def model_case(name: str, dtype: str) -> Case:
    """Returns an allreduce of all gradients of a model of keras.applications.

    Raises:
        ValueError: There is no such model.
    """
    # Rank 0 alone builds the model: only its shapes are needed.
    made = models.gradient_shapes(name) if rank() == 0 else None
    found = allgather_json(made, "bench.shapes")[0]
    if isinstance(found, str):
        raise ValueError(found)
    return set_case(f"model {name}", found, dtype)


def set_case(section: str, shapes: Sequence[Sequence[int]], dtype: str = "float32") -> Case:
    """Returns an allreduce of many tensors: as one grouped one, and each by itself.

    Args:
        section: What it is.
        shapes: Of the tensors.
        dtype: Of the tensors.
    """
    counts = [int(np.prod(shape)) for shape in shapes]
    item = tf.as_dtype(dtype).size
    total = sum(counts) * item

    def build() -> dict[str, Call]:
        tensors = [tf.reshape(_tensor(int(np.prod(s)), dtype), s) for s in shapes]

        def bare(values: list[Any]) -> list[Any]:
            return [value + value for value in values]

        def grouped(values: list[Any]) -> list[Any]:
            doubled = [value + value for value in values]
            return grouped_allreduce(doubled, op=Sum, name=f"bench.{section}.grouped")

        def separate(values: list[Any]) -> list[Any]:
            return [
                allreduce(value + value, op=Sum, name=f"bench.{section}.{i}")
                for i, value in enumerate(values)
            ]

        return {
            "grouped": compiled(grouped, tensors),
            "separate": compiled(separate, tensors),
            BARE: compiled(bare, tensors),
            COPY: copying([count * item for count in counts]),
        }

    return Case(
        section=f"{section} {dtype}",
        label=f"{len(counts)} gradients, {section}",
        bytes=total,
        tensors=len(counts),
        build=build,
        ways=("grouped", "separate"),
        bus=BUS_FACTORS["allreduce"](size()),
        rounds=30,
    )


def step_case(kind: str) -> Case:
    """Returns a training step: with averaged gradients, with all ranks computing, and alone."""
    counts = models.counts(kind)

    def build() -> dict[str, Call]:
        local = models.training_step(kind, distributed=False)
        return {"step": models.training_step(kind, distributed=True), BARE: local, ALONE: local}

    return Case(
        section=f"step {kind}",
        label=f"training step of the {kind}",
        bytes=4 * sum(counts),
        tensors=len(counts),
        build=build,
        ways=("step",),
        rounds=60,
    )


def rounds_for(count: int) -> int:
    """Returns how many rounds so many bytes get: enough for a median, at most some seconds."""
    return _LONGEST_ROUNDS if count <= 64 << 10 else 40 if count <= 4 << 20 else 12


def compiled(function: Callable[[Any], Any], argument: Any) -> Call:
    """Returns a call of a function as a tf.function."""
    made = tf.function(function)
    return lambda: made(argument)


def _tensor(count: int, dtype: str) -> Any:
    return tf.cast(tf.random.uniform([count], 1, 100, seed=1 + rank()), dtype)


def copying(sizes: Sequence[int]) -> Call:
    """Returns what copies so many bytes from private memory to private memory."""
    pairs = [(np.ones(each, np.uint8), np.ones(each, np.uint8)) for each in sizes]

    def copy() -> None:
        for source, target in pairs:
            np.copyto(target, source)

    return copy
