"""Follows a record: what is new in it since the last look."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfring.observe.recorder.gradients import Series
from tfring.observe.recorder.reader import read_record
from tfring.observe.recorder.steps import Steps, take_new_steps


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
        steps: Steps that are over since the last look.
        steps_begun: How many steps have begun.
        unseen_calls: How many calls were overwritten before any look saw their end.
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

    The first look sees everything as new. A look costs some milliseconds, because a record has a
    bounded number of entries. What was overwritten between two looks is not seen.
    """

    def __init__(self, path: Path | str) -> None:
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
            RecordError: The file is no record, or has another version.
            OSError: The file cannot be read.
        """
        record = read_record(self.path)
        all_calls, all_plans = record.raw_calls, record.raw_plans
        over = all_calls["ended"] != 0
        calls, self._calls = _new(all_calls[over], self._calls, "number")
        plans, self._plans = _new(all_plans[all_plans["ended"] != 0], self._plans, "sequence")
        events = record.raw_events[record.raw_events["number"] > self._event]
        if len(events):
            self._event = int(events["number"].max())
        self._seen += len(calls)
        steps, begun = take_new_steps(all_calls, self._steps, all_are_over)
        self._steps_begun = max(self._steps_begun, begun)
        self._unseen = max(self._unseen, record.header["ended"] - self._seen)
        return News(
            header=record.header,
            ended_calls=calls,
            ended_plans=plans,
            events=events,
            open_calls=all_calls[~over],
            lateness=record.ranks,
            steps=steps,
            steps_begun=self._steps_begun,
            unseen_calls=self._unseen,
            read=record.read or 0,
        )


def _new(
    entries: np.ndarray[Any, Any], known: np.ndarray[Any, Any], key: str
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Returns the entries that are not known yet, and all that are known now."""
    numbers = entries[key]
    return entries[~np.isin(numbers, known, assume_unique=True)], numbers.copy()
