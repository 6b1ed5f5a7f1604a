"""What a rank holds in memory, as its record says."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RankMemory:
    """What a rank holds for training, in bytes; 0: nothing, or unknown.

    Attributes:
        weights: The weights that optimizers train, and this rank's parts of them (`shard_states`).
        states: The states of optimizers with accumulated gradients, or this rank's parts of them.
        copies: Parts of states, its own and other ranks', that an elastic job keeps of commits.
        buckets: Buffers of the runtime on the host, in which it moves and adds up buckets.
    """

    weights: int = 0
    states: int = 0
    copies: int = 0
    buckets: int = 0


NAMES = tuple(field.name for field in dataclasses.fields(RankMemory))


def memory_in(header: Mapping[str, Any]) -> RankMemory:
    """Returns what the header of a record says."""
    return RankMemory(*(int(header[f"{name}_memory"]) for name in NAMES))
