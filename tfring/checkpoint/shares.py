"""How several processes divide the arrays of one checkpoint among themselves."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Share:
    """Which part of a checkpoint a process writes."""

    data: str  # the file of arrays of share 0, from which the names of the others are made
    index: int  # from 0; share 0 has the manifest that names the checkpoint
    count: int  # how many shares there are


def balanced(sizes: Mapping[str, int], count: int) -> list[list[str]]:
    """Returns the names of each of `count` shares, whose largest is nearly as small as it can be.

    `sizes` are bytes by name, in the same order on all processes. A share may be empty.
    """
    shares: list[list[str]] = [[] for _ in range(count)]
    loads = [(0, index) for index in range(count)]
    for name in sorted(sizes, key=lambda each: -sizes[each]):
        load, index = heapq.heappop(loads)
        shares[index].append(name)
        heapq.heappush(loads, (load + sizes[name], index))
    return shares
