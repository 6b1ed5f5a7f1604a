"""How many elements a collective has on each rank, for so many bytes. As nccl-tests counts them."""

from __future__ import annotations

from typing import NamedTuple

ITEM_BYTES = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float64": 8,
    "int32": 4,
    "int64": 8,
}


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
