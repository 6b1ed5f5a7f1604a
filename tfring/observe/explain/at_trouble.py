"""Explains a job unasked: a stall while it lasts, and the end of a job that breaks.

On each rank errors say which command tells more. On rank 0 the explanation replaces the runtime's
warning of a stall, and is part of the error that ends it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from tfring.observe.explain.causes import WELL, Cause, Explanation
from tfring.observe.explain.explain import explain_now
from tfring.observe.recorder.keeping import launched
from tfring.observe.recorder.layout import RankState
from tfring.observe.recorder.places import id_of, short
from tfring.observe.recorder.reader import RecordError, read_header
from tfring.runtime import _native
from tfring.runtime.texts.times import time_text

_log = logging.getLogger("tfring")
# The thread sleeps until there is a warning, and looks this often whether it is still needed.
_WAKE_SECONDS = 3600.0
# A line is logged when a hang is this old, in seconds; then one every half an hour.
_AGAIN = (30.0, 120.0, 300.0, 540.0)
_LATER = 1800.0
_SECOND = 1e9
# The end of the process waits this long for the explanation of why its job broke.
_END_SECONDS = 10.0


def note_errors(record: str, stall: str = "", generation: int = 0) -> None:
    """Makes errors that concern several ranks say which command tells more.

    The runtime adds this text when it ends a call, so TensorFlow's exception has it, too.

    Args:
        record: The file of this rank's record.
        stall: The reason of the present stall, for the error that ends it.
        generation: Whose errors; 0: those of the present one.
    """
    job = short(id_of(Path(record).parent.name))
    _native.core.note_errors(f"`tfring explain {job}` says more.", stall, generation)


class TroubleExplainer:
    """A thread that sleeps until the runtime warns or breaks, and then explains the job.

    It ends with the generation in which it began. It logs the runtime's warnings in the words of
    the explanation, if there is one: a paragraph first, then a line now and then.

    Args:
        record: The record of this rank, beside those of the other ranks of this host.
        interval: Seconds between two warnings of one stall.
    """

    def __init__(self, record: str, interval: float) -> None:
        self._record = record
        self._folder = Path(record).parent
        self._telling = Telling(id_of(self._folder.name), interval)
        self._generation = _native.core.generation_state().number
        self._thread = threading.Thread(target=self._run, name="tfring-explain", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Waits for the end of the thread, after the end of the runtime."""
        self._thread.join(timeout=_END_SECONDS)

    def _run(self) -> None:
        own = self._generation
        while (heard := _native.core.wait_for_warning(_WAKE_SECONDS, own)) is not None:
            rung, warnings = heard
            if not rung:
                continue
            found = None
            if not self._launcher_explains():
                found = self._explain()
                stall = f"At the last warning: {found.text}" if found else ""
                note_errors(self._record, stall, own)
            for line in self._telling.lines(found, warnings, time.monotonic()):
                _log.warning("%s", line)

    def _launcher_explains(self) -> bool:
        """Whether the job has broken and `tfring run` will explain it when all ranks have ended."""
        try:
            broken = read_header(self._record)["state"] == RankState.FAILED
        except (RecordError, OSError):
            return False
        return broken and launched(id_of(self._folder.name))

    def _explain(self) -> Explanation | None:
        try:
            found = explain_now([self._folder])
            return None if found.cause in WELL else found
        except (RecordError, OSError):
            return None  # the folder has been removed: there is nothing to tell
        except Exception:  # a mistake in a rule; the next trouble may be explained
            _log.warning("tfring cannot explain what is wrong with this job", exc_info=True)
            return None


class Telling:
    """Decides what to say each time the runtime warns.

    Args:
        job: The job's id.
        interval: Seconds between two warnings of one stall.
    """

    def __init__(self, job: str, interval: float) -> None:
        self._job = short(job)
        self._interval = interval
        self._subject: tuple[Cause, tuple[int, ...]] | None = None
        self._since = 0.0
        self._heard = float("-inf")
        self._due = 0.0

    def lines(self, found: Explanation | None, warnings: Sequence[str], now: float) -> list[str]:
        """Returns what to log now.

        Args:
            found: What is wrong; None: no rule knows.
            warnings: What the runtime says.
            now: The time, in seconds of a monotonic clock.
        """
        age = 0.0 if found is None else found.age / _SECOND
        subject = None if found is None else (found.cause, found.ranks)
        # Warnings of one stall follow each other.
        again = now - self._heard < 2 * self._interval + 10 and subject == self._subject
        self._heard = now
        if not again:
            self._subject, self._since = subject, now - age
        age = now - self._since
        if again and age < self._due:
            return []
        self._due = next((one for one in _AGAIN if one > age), age + _LATER)
        if found is None:
            return list(warnings)
        return [self._line(found, age) if again else self._paragraph(found, age)]

    def _paragraph(self, found: Explanation, age: float) -> str:
        ends = found.ends(round(age * _SECOND))
        where = f"`tfring explain {self._job}` and `tfring stacks {self._job}` show more."
        return " ".join(filter(None, (found.text, f"{ends}." if ends else "", where)))

    def _line(self, found: Explanation, age: float) -> str:
        text = found.brief[:1].lower() + found.brief[1:]
        since = round(age * _SECOND)
        ends = found.ends(since)
        parts = (f"still: {text}, {time_text(age)}", ends[:1].lower() + ends[1:])
        return "; ".join((*filter(None, parts), f"tfring explain {self._job}"))
