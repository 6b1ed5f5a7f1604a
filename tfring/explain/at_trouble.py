"""Explains a job without being asked: stalls while they last, and the end of a job that breaks.

On every rank errors say where to read more. On rank 0 the explanation follows the warning of a
stall, and is part of the error that ends it.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from tfring import _native
from tfring.explain.causes import WELL, Explanation
from tfring.explain.explain import explain_now
from tfring.recorder.keeping import launched
from tfring.recorder.layout import RankState
from tfring.recorder.places import id_of, short
from tfring.recorder.reader import RecordError, read_header

_log = logging.getLogger("tfring")
# The thread sleeps until there is a warning; so often it looks whether it is still needed.
_WAKE_SECONDS = 3600.0
# An end of the process waits for so long for the explanation of why its job broke.
_END_SECONDS = 10.0


def note_errors(record: str, stall: str = "", generation: int = 0) -> None:
    """Has errors that concern several ranks say in their messages where to read more.

    The runtime adds it where it ends a call, so that it is in what TensorFlow raises, too.

    Args:
        record: The file of this rank's record.
        stall: What the present stall comes from, for the error that ends it.
        generation: Whose errors; 0: those of the present one.
    """
    job = short(id_of(Path(record).parent.name))
    _native.core.note_errors(f"`tfring explain {job}` says more.", stall, generation)


class TroubleExplainer:
    """A thread that sleeps in the runtime until that warns or breaks, and then explains the job.

    It ends with the generation in which it began. A warning that is repeated is not explained again
    as long as the explanation is about the same ranks and tensors.

    Args:
        record: The record of this rank, which lies beside those of the other ranks of this host.
    """

    def __init__(self, record: str) -> None:
        self._record = record
        self._folder = Path(record).parent
        self._generation = int(_native.core.generation_state()["generation"])
        self._thread = threading.Thread(target=self._run, name="tfring-explain", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Waits for the end of the thread, after the end of the runtime."""
        self._thread.join(timeout=_END_SECONDS)

    def _run(self) -> None:
        told: tuple[object, ...] = ()
        own = self._generation
        while (heard := _native.core.wait_for_warning(_WAKE_SECONDS, own)) is not None:
            if not heard or self._launcher_explains():
                continue
            found = self._explain()
            important = found is not None and found.cause not in WELL
            stall = f"At the last warning: {found.text}" if found and important else ""
            note_errors(self._record, stall, own)
            if found is None or not important:
                continue
            subject = found.cause, found.ranks, found.names
            if subject != told:
                _log.warning("what is wrong with this job: %s", found.text)
            told = subject

    def _launcher_explains(self) -> bool:
        """Whether the job has broken and `tfring run` says why, when all ranks have ended."""
        try:
            broken = read_header(self._record)["state"] == RankState.FAILED
        except (RecordError, OSError):
            return False
        return broken and launched(id_of(self._folder.name))

    def _explain(self) -> Explanation | None:
        try:
            return explain_now([self._folder])
        except (RecordError, OSError):
            return None  # the folder has been removed: there is nothing to tell
        except Exception:  # a mistake in a rule; the next trouble may be explained
            _log.warning("what is wrong with this job cannot be explained", exc_info=True)
            return None
