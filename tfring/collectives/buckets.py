"""Cuts the list of gradients into buckets: pure functions of dtypes and sizes.

One bucket is one collective. Buckets are cut when a function is traced, in reverse variable order,
because backward computes the last layer's gradients first. The first bucket is small, so
communication starts early. The others are large, so a step needs few operations.

The cut does not depend on which gradients exist. So a bucket has the same number, and its
collective the same name, on every rank, even if a gradient is None on some ranks only. The ranks'
layout hashes then differ, and all ranks get an error instead of an endless wait.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Sequence

from tfring.ops import arguments

FIRST_BUCKET_BYTES = 1 << 20
BUCKET_BYTES = 25 << 20


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """The properties of a variable that the cut needs."""

    dtype: str
    nbytes: int


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Positions, in the list of variables, whose gradients one collective reduces; one dtype."""

    index: int
    dtype: str
    positions: tuple[int, ...]


Groups = int | tuple[tuple[int, ...], ...] | None


@functools.lru_cache(maxsize=256)
def cut_buckets(
    specs: tuple[TensorSpec, ...],
    groups: Groups = None,
    first_bytes: int = FIRST_BUCKET_BYTES,
    bucket_bytes: int = BUCKET_BYTES,
) -> tuple[Bucket, ...]:
    """Cuts the variables into buckets, in the order in which they should be sent.

    Args:
        specs: one per variable, in variable order.
        groups: None cuts by size. A number makes that many groups of consecutive variables. A tuple
            of tuples of positions makes these groups, and cuts all others by size. A group becomes
            one bucket per dtype in it.
        first_bytes: size of the first bucket when cutting by size.
        bucket_bytes: size of every later bucket.

    Raises:
        ValueError: a group names a position twice or one that does not exist.
    """
    backwards = range(len(specs) - 1, -1, -1)
    if isinstance(groups, int):
        chunks = _split_evenly(list(backwards), groups)
        return _number(specs, [part for chunk in chunks for part in _by_dtype(specs, chunk)])
    grouped = _check_groups(groups or (), len(specs))
    parts = _cut_by_size(
        specs, [p for p in backwards if p not in grouped], first_bytes, bucket_bytes
    )
    for group in groups or ():
        parts.extend(_by_dtype(specs, sorted(group, reverse=True)))
    # Buckets are sent in the order in which backward completes them: at their lowest position.
    parts.sort(key=min, reverse=True)
    return _number(specs, parts)


def layout_hash(buckets: Sequence[Bucket], kinds: Sequence[str], more: str = "") -> int:
    """Returns a number in [1, 2**63) that is equal on two ranks only if they cut alike.

    Args:
        buckets: the result of `cut_buckets`.
        kinds: one letter per variable, for its gradient on this rank: "D" dense, "S" sparse, "N"
            none.
        more: other values that must be equal.
    """
    text = ";".join(f"{b.index}:{b.dtype}:{','.join(map(str, b.positions))}" for b in buckets)
    return text_hash(f"{text}|{''.join(kinds)}{more}")


def text_hash(text: str) -> int:
    """Returns a number in [1, 2**63) with which ranks compare a text."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 1) or 1


def _number(specs: Sequence[TensorSpec], parts: list[list[int]]) -> tuple[Bucket, ...]:
    return tuple(
        Bucket(index, specs[part[0]].dtype, tuple(part)) for index, part in enumerate(parts)
    )


def _by_dtype(specs: Sequence[TensorSpec], positions: Sequence[int]) -> list[list[int]]:
    parts = arguments.by_dtype([specs[position] for position in positions], "")
    return [[positions[i] for i in part] for _, part in parts]


def _split_evenly(positions: list[int], count: int) -> list[list[int]]:
    if count < 1:
        raise ValueError(f"the number of groups must be positive, not {count}")
    count = min(count, len(positions))
    bounds = [len(positions) * i // count for i in range(count + 1)] if count else [0]
    return [positions[a:b] for a, b in itertools.pairwise(bounds)]


def _check_groups(groups: tuple[tuple[int, ...], ...], count: int) -> set[int]:
    seen: set[int] = set()
    for position in (p for group in groups for p in group):
        if not 0 <= position < count:
            raise ValueError(f"a group names variable {position}, but there are {count}")
        if position in seen:
            raise ValueError(f"variable {position} is in two groups, or twice in one")
        seen.add(position)
    return seen


def _cut_by_size(
    specs: Sequence[TensorSpec], positions: Sequence[int], first_bytes: int, bucket_bytes: int
) -> list[list[int]]:
    parts: list[list[int]] = []
    open_parts: dict[str, tuple[list[int], int, int]] = {}  # dtype -> positions, bytes, limit
    for position in positions:
        spec = specs[position]
        part, used, limit = open_parts.get(spec.dtype, ([], 0, 0))
        if not part or used + spec.nbytes > limit:
            part, used, limit = [], 0, bucket_bytes if parts else first_bytes
            parts.append(part)
        part.append(position)
        open_parts[spec.dtype] = (part, used + spec.nbytes, limit)
    return parts
