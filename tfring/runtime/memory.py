"""What weights and optimizer states take on this rank, for its record."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

from tfring.runtime import _native


class Held(NamedTuple):
    """What one optimizer, or one elastic state, holds in bytes.

    Attributes:
        weights: Of the weights that it trains, and of this rank's parts of them.
        states: Of its states, or of this rank's parts of them.
        copies: Of parts of states, its own and other ranks', that an elastic job keeps of commits.
    """

    weights: int
    states: int
    copies: int = 0


# By the object that holds it, until that is freed.
_held: weakref.WeakKeyDictionary[Any, Held] = weakref.WeakKeyDictionary()


def note(holder: Any, held: Held) -> None:
    """Notes what an object holds, in place of what was noted of it before."""
    _held[holder] = held
    tell()


def tell() -> None:
    """Writes what all of them hold into the record. `init` calls it: each has a new record."""
    found = list(_held.values())
    weights, states, copies = (sum(each[i] for each in found) for i in range(3))
    _native.core.mark_memory(weights, states, copies)
