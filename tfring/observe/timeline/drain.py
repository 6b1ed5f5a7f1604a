"""Copies what is new in a rank's record to its spool, a few times a second."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np

from tfring.observe.recorder import layout
from tfring.observe.timeline.phases import PhaseSource
from tfring.observe.timeline.spool import SpoolWriter

# Per ring: what numbers its entries, and what says that one is complete.
_KEYS = {"call": ("number", "ended"), "plan": ("sequence", "ended"), "event": ("number", "time")}


class Drain:
    """Reads the record of this process while the runtime writes it. For one thread."""

    def __init__(self, record: Path, writer: SpoolWriter, phases: PhaseSource) -> None:
        """Opens the record; calls and plans that have ended already are left out.

        Args:
            record: The file of this rank.
            writer: Gets what is new.
            phases: Has what `fit` notes, which is not in the record.

        Raises:
            OSError: The file cannot be read.
        """
        with record.open("rb") as file:
            # It stays readable when the runtime removes the file.
            self._memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        header = np.frombuffer(self._memory, layout.HEADER, 1)[0]
        self._writer, self._phases = writer, phases
        self._rings: dict[str, np.ndarray[Any, Any]] = {}
        at = layout.HEADER_BYTES
        dtypes = {"call": layout.CALL, "plan": layout.PLAN, "event": layout.EVENT}
        for name, dtype in dtypes.items():
            self._rings[name] = np.frombuffer(self._memory, dtype, int(header[f"{name}_slots"]), at)
            at += self._rings[name].nbytes
        self._ranks = slice(at, at + int(header["rank_slots"]) * layout.RANK.itemsize)
        # The number in each slot that has been written, and was complete.
        self._seen = {name: self._complete(name)[0] for name in self._rings}
        # What happened before, init among it, belongs to the timeline as well.
        self._seen["event"] = np.zeros_like(self._seen["event"])

    def take(self) -> None:
        """Writes what is complete and new."""
        header = bytes(self._memory[: layout.HEADER_BYTES])
        self._writer.add("header", header)
        for name, ring in self._rings.items():
            complete, _ = self._complete(name)
            seen = self._seen[name]
            slots = np.flatnonzero((complete != 0) & (complete != seen))
            entries = ring[slots]  # a copy
            # A slot that was given to another entry meanwhile comes with the next ones.
            key = _KEYS[name][0]
            whole = (entries[key] == complete[slots]) & (ring[key][slots] == complete[slots])
            seen[slots[whole]] = complete[slots][whole]
            self._writer.add(name, entries[whole].tobytes())
        self._writer.add("phases", self._phases.take())
        self._writer.flush(header)

    def take_all(self) -> None:
        """Writes what is new, even if it is not complete."""
        self.take()
        for name, ring in self._rings.items():
            numbers, _ = self._complete(name)
            entries = ring[(ring[_KEYS[name][0]] != 0) & (numbers == 0)]
            self._writer.add(name, entries.tobytes())
        self._writer.add("rank", self._memory[self._ranks])

    def _complete(self, name: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Returns the numbers of complete entries by slot, 0 for others; and all numbers."""
        number, end = _KEYS[name]
        numbers = self._rings[name][number].copy()
        return np.where(self._rings[name][end] != 0, numbers, 0), numbers
