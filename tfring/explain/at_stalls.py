"""Explains stalls while they last: rank 0's warning is followed by what is wrong with the job."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from tfring import _native
from tfring.explain.causes import Cause, Explanation
from tfring.explain.explain import explain_now
from tfring.recorder.places import record_files
from tfring.recorder.reader import RecordError

_log = logging.getLogger("tfring")
# The thread sleeps until there is a warning; so often it looks whether it is still needed.
_WAKE_SECONDS = 3600.0
_UNIMPORTANT = (Cause.NOTHING, Cause.OVER, Cause.SLOW)


class StallExplainer:
    """A thread that sleeps in the runtime until that warns, and then explains the job once.

    It ends when the runtime is shut down. A warning that is repeated is not explained again as long
    as the explanation is about the same ranks and tensors.

    Args:
        record: The record of this rank, which lies beside those of the other ranks of this host.
    """

    def __init__(self, record: str) -> None:
        self._folder = Path(record).parent
        self._thread = threading.Thread(target=self._run, name="tfring-explain", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Waits for the end of the thread, after the end of the runtime."""
        self._thread.join(timeout=10.0)

    def _run(self) -> None:
        told: tuple[object, ...] = ()
        while (heard := _native.core.wait_for_warning(_WAKE_SECONDS)) is not None:
            found = self._explain() if heard else None
            if found is None or found.cause in _UNIMPORTANT:
                continue
            subject = found.cause, found.ranks, found.names
            if subject != told:
                _log.warning("what is wrong with this job: %s", found.text)
            told = subject

    def _explain(self) -> Explanation | None:
        try:
            return explain_now(record_files(self._folder))
        except (RecordError, OSError):
            return None  # the folder has been removed: there is nothing to tell
        except Exception:  # a mistake in a rule; the next stall may be explained
            _log.warning("the stall cannot be explained", exc_info=True)
            return None
