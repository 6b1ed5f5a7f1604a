"""How several processes divide the arrays of one checkpoint among themselves."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Share:
    """Which part of a checkpoint a process writes.

    Attributes:
        data: name of the file of arrays of share 0, from which those of the others are made.
        index: which share, from 0. Share 0 has the manifest that names the checkpoint.
        count: how many there are.
    """

    data: str
    index: int
    count: int


def balanced(sizes: Mapping[str, int], count: int) -> list[list[str]]:
    """Divides arrays so that the largest share is as small as whole arrays let it be, or nearly.

    Args:
        sizes: bytes by name, in the same order on all processes.
        count: how many shares.

    Returns:
        The names of each share; a share may be empty.
    """
    shares: list[list[str]] = [[] for _ in range(count)]
    loads = [(0, index) for index in range(count)]
    for name in sorted(sizes, key=lambda each: -sizes[each]):
        load, index = heapq.heappop(loads)
        shares[index].append(name)
        heapq.heappush(loads, (load + sizes[name], index))
    return shares
