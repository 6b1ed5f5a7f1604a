"""What ``tfring bench`` measures: its options, and how many elements a collective has.

They are those of one rank in a collective of a given number of bytes, as nccl-tests counts them.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import NamedTuple

ITEM_BYTES = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float64": 8,
    "int32": 4,
    "int64": 8,
}
DTYPES = tuple(ITEM_BYTES)
STEPS = ("mlp", "cnn")
# Which part of the bytes crosses the busiest link with n ranks, as nccl-tests counts it.
BUS_FACTORS: dict[str, Callable[[int], float]] = {
    "allreduce": lambda n: 2 * (n - 1) / n,
    "allgather": lambda n: (n - 1) / n,
    "reducescatter": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
    "gather": lambda n: (n - 1) / n,
    "scatter": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
}
COLLECTIVES = tuple(BUS_FACTORS)

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_MOST_BYTES = 1 << 34


@dataclass(frozen=True)
class BenchOptions:
    """What is measured, the same on all ranks."""

    collectives: tuple[str, ...] = ("allreduce",)
    min_bytes: int = 4
    max_bytes: int = 64 << 20
    factor: int = 4
    dtype: str = "float32"
    models: tuple[str, ...] = ()  # of keras.applications
    steps: tuple[str, ...] = ()
    time_limit: float = 60.0  # seconds; 0: none
    json: str | None = None  # the file that rank 0 writes

    def sizes(self) -> list[int]:
        """Returns the numbers of bytes, ascending."""
        sizes, size = [], self.min_bytes
        while size < self.max_bytes:
            sizes.append(size)
            size *= self.factor
        return [*sizes, self.max_bytes]

    def to_json(self) -> str:
        """Returns text for the command line of a rank."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> BenchOptions:
        """Reads what `to_json` returned."""
        values = json.loads(text)
        lists = ("collectives", "models", "steps")
        return BenchOptions(**{**values, **{name: tuple(values[name]) for name in lists}})


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options to a parser."""
    add = parser.add_argument
    known = ", ".join(COLLECTIVES)
    add("--collective", metavar="NAME,...", help=f"allreduce (default), or all, or of: {known}")
    add(
        "--min-bytes",
        default="4",
        metavar="SIZE",
        help="smallest size, as 4, 64K, 1MiB (default %(default)s)",
    )
    add("--max-bytes", default="64M", metavar="SIZE", help="largest size (default %(default)s)")
    add(
        "--factor",
        type=int,
        default=4,
        metavar="N",
        help="ratio of one size to the next (default %(default)s)",
    )
    add("--dtype", choices=DTYPES, default="float32", help="of the tensors (default %(default)s)")
    add("--model", metavar="NAME,...", help="gradients of models of keras.applications: ResNet50")
    add("--step", metavar="NAME,...", help=f"training steps of small models: {', '.join(STEPS)}")
    add(
        "--time-limit",
        type=float,
        default=BenchOptions.time_limit,
        metavar="SECONDS",
        help="about how long to measure (default %(default)g); 0: as long as it takes",
    )
    add("--json", metavar="FILE", help="rank 0 writes the result, with all samples, for --compare")


def bench_options(given: argparse.Namespace) -> BenchOptions:
    """Returns what the parsed options say.

    Raises:
        ValueError: One is impossible; the message names it.
    """
    steps = _names("--step", given.step, STEPS)
    models = tuple(filter(None, (given.model or "").split(",")))
    for name in models:
        if not name.isidentifier():
            raise ValueError(f"--model {name}: it has to be a name of keras.applications: ResNet50")
    collectives = _names("--collective", given.collective, COLLECTIVES)
    if not (collectives or models or steps):
        collectives = ("allreduce",)
    smallest = _bytes("--min-bytes", given.min_bytes)
    largest = _bytes("--max-bytes", given.max_bytes)
    if smallest > largest:
        raise ValueError(f"--min-bytes {smallest} is more than --max-bytes {largest}")
    if given.factor < 2:
        raise ValueError(f"--factor {given.factor}: it has to be 2 or more")
    if given.time_limit < 0:
        raise ValueError(f"--time-limit {given.time_limit:g}: it has to be 0 or more")
    return BenchOptions(
        collectives=collectives,
        min_bytes=smallest,
        max_bytes=largest,
        factor=given.factor,
        dtype=given.dtype,
        models=models,
        steps=steps,
        time_limit=given.time_limit,
        json=given.json,
    )


def _names(option: str, text: str | None, known: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(filter(None, (text or "").split(","))))
    if names == ("all",):
        return known
    for name in names:
        if name not in known:
            raise ValueError(f"{option} {name}: there are {', '.join(known)}, and all")
    return names


def _bytes(option: str, text: str) -> int:
    """Reads a number of bytes: 4, 64K, 1MiB."""
    match = re.fullmatch(r"(\d+) *(?:([kmg])(?:i?b)?|b)?", text.strip().lower())
    if match is None:
        raise ValueError(f"{option} {text}: it has to be a number of bytes, as 4, 64K or 1MiB")
    count = int(match[1]) * _UNITS[match[2] or ""]
    if not 1 <= count <= _MOST_BYTES:
        raise ValueError(f"{option} {text}: it has to be from 1 to {_MOST_BYTES} bytes (16 GiB)")
    return count


class Shape(NamedTuple):
    """Elements of a rank's input and output, and what both describe: the bytes of the whole."""

    given: int
    received: int
    bytes: int


def shape_of(collective: str, size: int, dtype: str, ranks: int) -> Shape:
    """Returns the shape of a collective.

    The bytes are those of the larger of a rank's input and output; for gather the root's output,
    for scatter its input. Where each rank has a part they are rounded up to equal parts.

    Args:
        collective: Its name.
        size: How many bytes.
        dtype: Of the elements.
        ranks: How many ranks.
    """
    item = ITEM_BYTES[dtype]
    part = max(1, -(-size // (item * ranks)))
    whole = part * ranks
    if collective in ("allreduce", "broadcast", "reduce"):
        count = max(1, size // item)
        return Shape(count, count, count * item)
    if collective in ("allgather", "gather"):
        return Shape(part, whole, whole * item)
    if collective in ("reducescatter", "scatter"):
        return Shape(whole, part, whole * item)
    return Shape(whole, whole, whole * item)  # alltoall
