"""Finds the ranks of each process set in the records of a job."""

from __future__ import annotations

import re

from tfring.observe.recorder.job import JobRecords
from tfring.observe.recorder.layout import EventType

# As the runtime writes it: "0: 0-3; 1: 0, 2".
_SETS = re.compile(r"\d+: \d[\d, -]*(; \d+: \d[\d, -]*)*")


def find_members(job: JobRecords) -> dict[int, tuple[int, ...]]:
    """Returns the ranks of each process set that was used, ascending, by the set's number.

    If the records have only calls of a set, these are the ranks that called.
    """
    members: dict[int, set[int]] = {}
    for rank, record in job.records.items():
        for call in record.calls:
            members.setdefault(call.process_set, set()).add(rank)
    for record in job.records.values():
        for event in record.events:
            if event.type == EventType.PROCESS_SETS:
                members.update(_parse(event.text))
    members[0] = set(range(job.size))
    return {number: tuple(sorted(ranks)) for number, ranks in sorted(members.items())}


def _parse(text: str) -> dict[int, set[int]]:
    if not _SETS.fullmatch(text):
        return {}  # cut, because there are very many
    sets = {}
    for one in text.split("; "):
        number, _, ranks = one.partition(": ")
        sets[int(number)] = {rank for part in ranks.split(", ") for rank in _range(part)}
    return sets


def _range(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)
