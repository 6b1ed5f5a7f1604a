"""What `fit` does when on a rank; it notes this while a timeline is on."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

PHASE = np.dtype([("begin", "<i8"), ("end", "<i8"), ("number", "<i8"), ("kind", "<i8")])
# Of each kind: the lane, in the order in which lanes are shown, and how one is called.
KINDS = (
    ("fit", "epoch {}"),
    ("fit", "after epoch {}: validation, callbacks"),
    ("fit", "step {}"),
    ("input", "input of step {}"),
    ("callbacks", "callbacks after step {}"),
)
EPOCH, AFTER_EPOCH, STEP, INPUT, CALLBACKS = range(len(KINDS))
Phases = np.ndarray[Any, Any]
NO_PHASES: Phases = np.zeros(0, PHASE)


class PhaseSource:
    """Holds phases until they are taken. One thread notes, and another takes."""

    def __init__(self) -> None:
        self._noted: deque[tuple[int, int, int, int]] = deque()

    def note(self, kind: int, number: int, begin: int, end: int) -> None:
        """Adds a phase; times in nanoseconds of the monotonic clock."""
        self._noted.append((begin, end, number, kind))

    def take(self) -> bytes:
        """Returns what has come since the last call."""
        taken = [self._noted.popleft() for _ in range(len(self._noted))]
        return np.array(taken, PHASE).tobytes()
