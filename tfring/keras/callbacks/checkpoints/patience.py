"""What one rank does for long while the others wait for it: a storage may take an hour."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from tfring.keras.callbacks.checkpoints.agreement import highest

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


def while_others_wait(
    call: Callable[[], T] | None, *, finishes: bool = False
) -> tuple[T | None, Exception | None]:
    """Calls in a thread, and returns on all ranks when all calls have ended; a collective.

    The ranks tell each other once a second that one is busy. A rank that waited in one collective
    for as long as the storage takes would be taken for stalled, and would end the job.

    Args:
        call: what this rank has to do; None for nothing.
        finishes: whether to wait for its end also when a rank is lost. Else it goes on by itself.

    Returns:
        What this rank's call has returned, and what it has failed with.
    """
    work = None if call is None else _Work(call)
    try:
        while _is_busy(work):
            pass
    except Exception:
        if work is not None and finishes:
            work.thread.join()
        raise
    return (None, None) if work is None else (work.result, work.failure)


def _is_busy(work: _Work[T] | None) -> bool:
    """Returns whether a rank is busy, after a second at most; a collective."""
    if work is not None:
        work.thread.join(_PERIOD)
    busy = work is not None and work.thread.is_alive()
    return bool(highest([busy], "tfring.checkpoint.busy")[0])
