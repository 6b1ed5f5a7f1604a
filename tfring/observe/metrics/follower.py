"""Follows a record: what is new in it since the last look."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfring.observe.recorder.gradients import Series
from tfring.observe.recorder.reader import read_rings
from tfring.observe.recorder.steps import Steps, new_steps


@dataclass(frozen=True)
class News:
    """What a record holds, and what is new in it.

    Attributes:
        header: The record's header, by field.
        ended_calls: Calls whose end is new, an array of layout.CALL.
        ended_plans: Plans whose end is new, an array of layout.PLAN.
        events: New events, an array of layout.EVENT.
        open_calls: All calls that have not ended.
        lateness: On rank 0, of each rank: an array of layout.RANK.
        steps: Steps that are over since the last look, with where their time went.
        steps_begun: How many steps have begun.
        unseen_calls: How many calls have been overwritten before any look saw their end.
        read: When this was read, in nanoseconds of the monotonic clock.
    """

    header: dict[str, Any]
    ended_calls: np.ndarray[Any, Any]
    ended_plans: np.ndarray[Any, Any]
    events: np.ndarray[Any, Any]
    open_calls: np.ndarray[Any, Any]
    lateness: np.ndarray[Any, Any]
    steps: Steps
    steps_begun: int
    unseen_calls: int
    read: int


class RecordFollower:
    """Reads the record of a rank again and again. For one thread at a time.

    A look costs some milliseconds, however long ago the last one was: a record has a bounded number
    of entries. What was overwritten between two looks is not seen.
    """

    def __init__(self, path: Path | str) -> None:
        """Sees everything in the record as new.

        Args:
            path: The file of one rank.
        """
        self.path = Path(path)
        self._calls = self._plans = np.zeros(0, dtype=np.uint64)  # ended at the last look
        self._event = 0
        self._steps: dict[Series, int] = {}
        self._seen = self._unseen = self._steps_begun = 0

    def look(self, all_are_over: bool = False) -> News:
        """Returns what is new.

        Args:
            all_are_over: See new_steps.

        Raises:
            RecordError: The file is no record, or of another version.
            OSError: The file cannot be read.
        """
        rings = read_rings(self.path)
        over = rings.calls["ended"] != 0
        calls, self._calls = _new(rings.calls[over], self._calls, "number")
        plans, self._plans = _new(rings.plans[rings.plans["ended"] != 0], self._plans, "sequence")
        events = rings.events[rings.events["number"] > self._event]
        if len(events):
            self._event = int(events["number"].max())
        self._seen += len(calls)
        steps, begun = new_steps(rings.calls, self._steps, all_are_over)
        self._steps_begun = max(self._steps_begun, begun)
        self._unseen = max(self._unseen, rings.header["ended"] - self._seen)
        return News(
            header=rings.header,
            ended_calls=calls,
            ended_plans=plans,
            events=events,
            open_calls=rings.calls[~over],
            lateness=rings.ranks,
            steps=steps,
            steps_begun=self._steps_begun,
            unseen_calls=self._unseen,
            read=rings.read,
        )


def _new(
    entries: np.ndarray[Any, Any], known: np.ndarray[Any, Any], key: str
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Returns the entries that are not known yet, and what is known from now on."""
    numbers = entries[key]
    return entries[~np.isin(numbers, known, assume_unique=True)], numbers.copy()
