"""The messages between ranks within plans, as ops/runtime/interfaces/hops.h has them.

Each rank notes them while a timeline is on: when each began and ended, and with which peer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

HOP = np.dtype(
    [
        ("sequence", "<u8"),
        ("since", "<i8"),
        ("first", "<i8"),
        ("end", "<i8"),
        ("bytes", "<i8"),
        ("peer", "<i4"),
        ("receives", "<u4"),
    ]
)
Hops = np.ndarray[Any, Any]
NO_HOPS: Hops = np.zeros(0, HOP)


class HopSource:
    """Takes the hops of this process. Thread-safe; the last ones are kept over the shutdown."""

    def __init__(self, take: Callable[[bool], bytes]) -> None:
        """Begins to note hops.

        Args:
            take: The binding's take_hops.
        """
        self._take, self._lock = take, threading.Lock()
        self._last: bytes | None = None  # guarded by _lock; not None: noting has ended
        take(True)

    def take(self) -> bytes:
        """Returns what has come since the last call."""
        with self._lock:
            if self._last is None:
                return self._take(True)
            taken, self._last = self._last, b""
            return taken

    def end(self) -> None:
        """Ends noting, before the runtime is gone."""
        with self._lock:
            if self._last is None:
                self._last = self._take(False)
