"""The record of this process itself, for what looks at its own calls while it trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tfring.recorder import layout

# The file, from init to shutdown; None: there is none.
_path: Path | None = None


def set_own(path: str | None) -> None:
    """Is called by init and shutdown."""
    global _path
    _path = None if path is None else Path(path)


class OwnCalls:
    """The newest calls of this process. Stays usable when the file has been removed."""

    def __init__(self, slots: np.ndarray[Any, Any]) -> None:
        """Use `open_own`."""
        self._slots = slots

    def newer_than(self, number: int) -> np.ndarray[Any, Any]:
        """Returns the calls with larger numbers, as an array of layout.CALL, by number.

        Calls that are being written just now are left out.
        """
        chosen = np.flatnonzero(self._slots["number"] > number)
        calls = self._slots[chosen]
        whole = calls["number"] == self._slots["number"][chosen]
        calls = calls[whole & (calls["number"] > number)]
        ordered: np.ndarray[Any, Any] = calls[np.argsort(calls["number"])]
        return ordered


def open_own() -> OwnCalls | None:
    """Returns the calls of this process; None if it keeps no record in a file."""
    if _path is None:
        return None
    try:
        header = np.fromfile(_path, layout.HEADER, 1)[0]
        count, start = int(header["call_slots"]), int(header["header_bytes"])
        return OwnCalls(np.memmap(_path, layout.CALL, "r", start, (count,)))
    except (OSError, ValueError, IndexError):
        return None
