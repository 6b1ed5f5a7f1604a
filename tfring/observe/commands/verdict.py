"""What is wrong with a job, for commands that show other things of it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from pathlib import Path

from tfring.observe.explain.causes import WELL
from tfring.observe.explain.explain import explain_job
from tfring.observe.recorder.job import JobRecords, load_job
from tfring.observe.recorder.reader import RecordError
from tfring.runtime.texts.plain import plain


def find_verdict(given: Sequence[Path | str]) -> str:
    """Returns the verdict on a job; "" if its records go just now."""
    with contextlib.suppress(OSError, RecordError):
        return make_verdict(load_job(given))
    return ""


def make_verdict(job: JobRecords) -> str:
    """Returns what is wrong with a job, in a paragraph; "": nothing, or it is only slow."""
    found = explain_job(job)
    return "" if found.cause in WELL else plain(" ".join(found.text.split()))


def first_sentence(text: str) -> str:
    """Returns the first sentence of a paragraph."""
    sentence, more, _ = text.partition(". ")
    return f"{sentence}." if more else text


class LatestVerdict:
    """The verdict on a job, found on a thread because it takes a second."""

    def __init__(self, given: Sequence[Path | str]) -> None:
        self._given = given
        self._thread: threading.Thread | None = None
        self._text = ""  # replaced whole

    def get(self, *, calm: bool) -> str:
        """Returns the last verdict and starts to look again; `calm`: no rank looks wrong."""
        if calm:
            self._text = ""
        elif self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._look, daemon=True)
            self._thread.start()
        return first_sentence(self._text)

    def _look(self) -> None:
        self._text = find_verdict(self._given)
