"""Decides what to log of a hang: a paragraph first, then a line now and then."""

from __future__ import annotations

from collections.abc import Sequence

from tfring.observe.explain.causes import Cause, Explanation
from tfring.observe.recorder.places import short
from tfring.runtime.texts.times import time_text

_SECOND = 1e9
# A line is logged when a hang is this old, in seconds; then one every half an hour.
_AGAIN = (30.0, 120.0, 300.0, 540.0)
_LATER = 1800.0


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
