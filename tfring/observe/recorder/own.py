"""The record of this process, for what reads its own calls while it trains."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from tfring.observe.recorder import layout

# The process and its file, from init to shutdown; None: there is none.
_own: tuple[int, Path] | None = None


def set_own(path: str | None) -> None:
    """Notes the file of this rank's record; None: there is none. Called by init and shutdown."""
    global _own
    _own = None if path is None else (os.getpid(), Path(path))


def own_path() -> Path | None:
    """Returns the file of this rank's record; None: there is none, or this is a forked child."""
    return _own[1] if _own is not None and _own[0] == os.getpid() else None


class OwnCalls:
    """The newest calls of this process. Stays usable after the file is removed."""

    def __init__(self, slots: np.ndarray[Any, Any]) -> None:
        """Use `open_own`."""
        self._slots = slots

    def newer_than(self, number: int) -> np.ndarray[Any, Any]:
        """Returns the complete calls with larger numbers, as an array of layout.CALL, by number."""
        chosen = np.flatnonzero(self._slots["number"] > number)
        calls = self._slots[chosen]
        whole = calls["number"] == self._slots["number"][chosen]
        calls = calls[whole & (calls["number"] > number)]
        ordered: np.ndarray[Any, Any] = calls[np.argsort(calls["number"])]
        return ordered


def open_own() -> OwnCalls | None:
    """Returns the calls of this process; None if it keeps no record in a file."""
    path = own_path()
    if path is None:
        return None
    try:
        header = np.fromfile(path, layout.HEADER, 1)[0]
        count, start = int(header["call_slots"]), int(header["header_bytes"])
        return OwnCalls(np.memmap(path, layout.CALL, "r", start, (count,)))
    except (OSError, ValueError, IndexError):
        return None
