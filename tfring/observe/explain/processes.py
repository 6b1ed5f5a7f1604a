"""Looks at the processes of a job on this host."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tfring.observe.recorder.job import JobRecords
from tfring.observe.recorder.processes import process_state, stat_fields
from tfring.observe.recorder.stacks import take_stacks, waits_in_kernel

# Processes are watched for this long to see whether they compute.
WATCH_SECONDS = 0.25
# A process that computes keeps this part of a core busy.
_BUSY = 0.3


@dataclass(frozen=True)
class Seen:
    """One process.

    Attributes:
        state: "running", "stopped", "gone", or None: it is on another host.
        busy: Whether it computes; None: unknown.
        stacks: Its Python stacks, from `take_stacks`; "": not asked.
        kernel: Where in the kernel its main thread waits; "": unknown, or it runs.
    """

    state: str | None
    busy: bool | None = None
    stacks: str = ""
    kernel: str = ""


def look(job: JobRecords) -> dict[int, Seen]:
    """Looks at the processes of a job; takes WATCH_SECONDS if any of them runs on this host."""
    states = {rank: process_state(record.header) for rank, record in job.records.items()}
    alive = [rank for rank, state in states.items() if state == "running"]
    before = {rank: _processor_time(job.records[rank].pid) for rank in alive}
    began = time.monotonic()
    if alive:
        time.sleep(WATCH_SECONDS)
    span = max(time.monotonic() - began, 1e-3)
    busy: dict[int, bool | None] = {}
    for rank, earlier in before.items():
        later = _processor_time(job.records[rank].pid)
        if earlier is None or later is None:
            busy[rank] = None
        else:  # one that wants to compute may not get a core
            busy[rank] = later[1] - earlier[1] > _BUSY * span or later[0] == earlier[0] == "R"
    return {rank: Seen(state, busy.get(rank)) for rank, state in states.items()}


def with_stacks(
    job: JobRecords, seen: Mapping[int, Seen], ranks: Iterable[int], timeout: float
) -> dict[int, Seen]:
    """Asks ranks for their stacks and adds them to `seen`.

    Args:
        job: The records of the job.
        seen: The processes, by rank.
        ranks: Whom to ask; those that do not run on this host are left out.
        timeout: Seconds, see `take_stacks`.
    """
    asked = {r: job.records[r] for r in ranks if r in seen and seen[r].state == "running"}
    found = take_stacks(asked, timeout)
    more = {
        rank: replace(
            seen[rank],
            stacks=stacks,
            kernel=waits_in_kernel(asked[rank].pid),
        )
        for rank, stacks in found.items()
    }
    return {**seen, **more}


def _processor_time(pid: int) -> tuple[str, float] | None:
    """Returns the state of a process's main thread, and its processor time in seconds."""
    try:
        fields = stat_fields(pid)
    except OSError:
        return None
    return fields[0], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
