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


def own_calls(after: int) -> np.ndarray[Any, Any] | None:
    """Returns the complete calls of this process with larger numbers, by number.

    It is an array of layout.CALL; None if this process keeps no record in a file.
    """
    path = own_path()
    if path is None:
        return None
    try:
        header = np.fromfile(path, layout.HEADER, 1)[0]
        count, start = int(header["call_slots"]), int(header["header_bytes"])
        slots = np.memmap(path, layout.CALL, "r", start, (count,))
    except (OSError, ValueError, IndexError):
        return None
    chosen = np.flatnonzero(slots["number"] > after)
    calls = np.array(slots[chosen])
    whole = calls["number"] == slots["number"][chosen]
    calls = calls[whole & (calls["number"] > after)]
    ordered: np.ndarray[Any, Any] = calls[np.argsort(calls["number"])]
    return ordered
