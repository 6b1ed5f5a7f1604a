"""The numbers of a report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tfring.observe.recorder.job import JobRecords
from tfring.observe.recorder.layout import EventType
from tfring.observe.recorder.marks import EQUAL, ROUNDED
from tfring.observe.recorder.memory import RankMemory, memory_in
from tfring.observe.recorder.processes import process_state
from tfring.observe.recorder.reader import Record
from tfring.observe.report.job_steps import JobSteps, find_job_steps
from tfring.observe.report.slowdowns import Slowdown, find_always_slow, find_slowdowns

_NOTES = 20
_EQUALITY: dict[str, bool | None] = {EQUAL: True, ROUNDED: False}


@dataclass(frozen=True)
class RankSummary:
    """One rank; times are nanoseconds.

    Attributes:
        rank: Its number.
        host: The name of its host.
        state: "running", "stopped", "ended", "failed", or "gone" without a reason.
        epoch: Of `fit`, from 1 on; 0: unknown.
        epochs: How many epochs `fit` has.
        step: The last one that the program marked; -1: none.
        loss: Of `fit`, of the epoch so far on this rank; None: unknown.
        input: Mean wait for input per step; None: not reported.
        callbacks: Mean of Keras' callbacks after each batch.
        own: Median of its own work per step, with input and callbacks; None: no steps are known.
        waiting: Median wait for other ranks per step.
        exchange: Median of waiting and of communication per step that no computation hid.
        late: How long the others waited for it in the steps of the report.
        memory: What it holds.
    """

    rank: int
    host: str
    state: str
    epoch: int
    epochs: int
    step: int
    loss: float | None
    input: float | None
    callbacks: float | None
    own: float | None
    waiting: float | None
    exchange: float | None
    late: int
    memory: RankMemory


@dataclass(frozen=True)
class Report:
    """What the records of a job say of its speed.

    Attributes:
        job: Its id.
        size: How many ranks it has.
        missing: Ranks without a record.
        ranks: One summary for each record.
        steps: The steps that all records have.
        slowdowns: What became slower.
        notes: The last lines that the program wrote into the records, as (rank, text).
        equal: Whether all ranks had equal weights at the end of the last `fit`; False: except for
            rounding; None: unknown.
    """

    job: str
    size: int
    missing: tuple[int, ...]
    ranks: tuple[RankSummary, ...]
    steps: JobSteps
    slowdowns: tuple[Slowdown, ...]
    notes: tuple[tuple[int, str], ...]
    equal: bool | None = None

    @property
    def slowest(self) -> RankSummary | None:
        """The rank for which the others waited longest; None if they waited for nobody."""
        late = [rank for rank in self.ranks if rank.late]
        return max(late, key=lambda rank: rank.late, default=None)

    @property
    def always_slow(self) -> int | None:
        """The rank that is slow without having become slow, if any."""
        steps = self.steps
        time = float(steps.total.mean(axis=0).sum()) if len(steps.number) else 0.0
        found = find_always_slow(steps.last_rank, steps.waited_for, time)
        changed = {one.rank for one in self.slowdowns}
        return None if found is None or found[0] in changed else found[0]


def make_report(job: JobRecords) -> Report:
    """Returns what the records of a job say of its speed."""
    steps = find_job_steps(job)
    late = steps.waited_by_rank()
    ranks = [_summary(record, steps, late.get(rank, 0)) for rank, record in job.records.items()]
    marks = _marks(job)
    return Report(
        job=job.job,
        size=job.size,
        missing=tuple(job.missing),
        ranks=tuple(ranks),
        steps=steps,
        slowdowns=tuple(find_slowdowns(steps)),
        notes=tuple((rank, text) for _, rank, text in marks[-_NOTES:] if text not in _EQUALITY),
        equal=([_EQUALITY[text] for _, _, text in marks if text in _EQUALITY] or [None])[-1],
    )


def _marks(job: JobRecords) -> list[tuple[int, int, str]]:
    """Returns what the program wrote into the records: times, ranks and texts."""
    return sorted(
        (job.common(rank, event.time), rank, event.text)
        for rank, record in job.records.items()
        for event in record.events
        if event.type == EventType.MARK and event.text
    )


def _summary(record: Record, steps: JobSteps, late: int) -> RankSummary:
    header = record.header
    own: float | None = None
    waiting = exchange = own
    if record.rank in steps.ranks and len(steps.number):
        row = steps.ranks.index(record.rank)
        parts = (steps.own, steps.waiting, steps.waiting + steps.exposed)
        own, waiting, exchange = (float(np.median(part[row])) for part in parts)
    return RankSummary(
        rank=record.rank,
        host=record.host,
        state=_state(record),
        epoch=int(header["epoch"]),
        epochs=int(header["epochs"]),
        step=int(header["step"]),
        loss=float(header["loss"]) if header["has_loss"] else None,
        input=_per_step(header, "input_time"),
        callbacks=_per_step(header, "callback_time"),
        own=own,
        waiting=waiting,
        exchange=exchange,
        late=late,
        memory=memory_in(header),
    )


def _per_step(header: dict[str, Any], name: str) -> float | None:
    """Returns the mean of a sum of nanoseconds; None: not reported."""
    steps, spent = int(header["step"]), int(header[name])
    return spent / steps if steps > 0 and (spent or header["epoch"]) else None


def _state(record: Record) -> str:
    name = record.state.name.lower()
    if name == "left":
        return "ended"
    if name == "failed":
        return "failed"
    return process_state(record.header) or name
