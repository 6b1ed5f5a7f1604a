"""What one rank does for long while the others wait for it: a storage may take an hour."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np

from tfring import _native
from tfring.exceptions import tf_errors
from tfring.ops import reduce_ops

T = TypeVar("T")
_PERIOD = 1.0  # seconds


class _Work(Generic[T]):
    """A call in a thread of its own, and how it has ended."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self.result: T | None = None
        self.failure: Exception | None = None
        self.thread = threading.Thread(target=self._run, name="tfring-storage", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.result = self._call()
        except Exception as error:
            self.failure = error


def while_others_wait(call: Callable[[], T] | None) -> tuple[T | None, Exception | None]:
    """Calls in a thread, and returns on all ranks when all calls have ended; a collective.

    The ranks tell each other once a second that one is busy. A rank that waited in one collective
    for as long as the storage takes would be taken for stalled, and would end the job.

    Args:
        call: what this rank has to do; None for nothing.

    Returns:
        What this rank's call has returned, and what it has failed with.
    """
    work = None if call is None else _Work(call)
    busy = True
    while busy:
        if work is not None:
            work.thread.join(_PERIOD)
        mine = np.array([work is not None and work.thread.is_alive()], dtype=np.float64)
        with tf_errors():
            everywhere = _native.core.allreduce(
                mine, name="tfring.checkpoint.busy", op=reduce_ops.Max
            )
        busy = bool(everywhere[0])
    return (None, None) if work is None else (work.result, work.failure)
