"""Changes of the hosts, as states hear of them."""

from __future__ import annotations

import queue
import time
from typing import Any

import numpy as np

from tfring.elastic import process as processes
from tfring.ops import reduce_ops
from tfring.runtime import _native
from tfring.runtime.topology import is_initialized, size

# What has happened to the hosts, as Horovod numbers it.
NO_UPDATE, REMOVED, ADDED, MIXED = range(4)


class HostMessages(queue.Queue[tuple[float, int]]):
    """Times and kinds of changes. On rank 0 a change that is pending puts itself in, once."""

    def __init__(self) -> None:
        """Nothing has come yet."""
        super().__init__()
        self._told = 0  # the generation for which a change was put in

    def empty(self) -> bool:
        """Whether there is no message."""
        self._look()
        return super().empty()

    def qsize(self) -> int:
        """Returns the number of messages."""
        self._look()
        return super().qsize()

    def _look(self) -> None:
        process = processes.present()
        if process is None or not process.link.change_pending:
            return
        if self._told != process.generation:
            self._told = process.generation
            self.put((time.time(), MIXED))


def strongest(mine: int) -> int:
    """Returns the strongest of what all ranks have heard. A collective.

    Each rank gives one of the numbers above, or a higher one of the caller's.

    Raises:
        CoreError: A rank was lost.
    """
    if not is_initialized() or size() == 1:
        return mine
    value: Any = np.array([mine], dtype=np.int32)
    name = "tfring.elastic.host_updates"
    _native.note_call_site()
    return int(_native.core.allreduce(value, name=name, op=reduce_ops.Max)[0])
