"""The training steps of all ranks of a job, side by side on one clock."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tfring.recorder.job import JobRecords
from tfring.report.step_times import Array, StepTimes, step_times


@dataclass(frozen=True)
class JobSteps:
    """The steps that the records of all ranks still have; times in nanoseconds.

    Every step of a rank consists of three parts: its own work (input, forward and backward pass,
    update of the weights, and what the program does besides), waiting for ranks that were not ready
    yet, and communication that no computation hid.

    Attributes:
        ranks: Whose records there are.
        number: The steps, from 1 on.
        own: By rank and step: own work.
        waiting: By rank and step: from when this rank had its last gradients until all had.
        exposed: By rank and step: from then until the gradients were reduced.
        overlapped: By rank and step: communication while this rank computed.
        began: By rank and step: when the step began, on the common clock.
        bytes: By step: of the gradients of one rank.
        last_rank: By step: which rank was ready last; -1: not known.
        waited_for: By step: for so long all others have waited for that rank.
    """

    ranks: tuple[int, ...]
    number: Array
    own: Array
    waiting: Array
    exposed: Array
    overlapped: Array
    began: Array
    bytes: Array
    last_rank: Array
    waited_for: Array

    @property
    def total(self) -> Array:
        """By rank and step: how long it took."""
        return self.own + self.waiting + self.exposed

    @property
    def efficiency(self) -> float | None:
        """The share of time in which ranks did their own work; None without steps."""
        total = float(self.total.sum())
        return float(self.own.sum()) / total if total else None

    def waited_by_rank(self) -> dict[int, int]:
        """Returns for how long all others have waited for each rank, in nanoseconds."""
        named = sorted({*self.ranks, *self.last_rank[self.last_rank >= 0].tolist()})
        return {rank: int(self.waited_for[self.last_rank == rank].sum()) for rank in named}


def job_steps(job: JobRecords) -> JobSteps:
    """Returns the steps that all records of a job have.

    Args:
        job: Its records. Ranks without a complete step are left out.
    """
    found = {rank: step_times(record.raw_calls) for rank, record in job.records.items()}
    known = {rank: times.take(times.began > 0) for rank, times in found.items()}
    return align_steps(job, {rank: times for rank, times in known.items() if len(times)})


def align_steps(job: JobRecords, times: dict[int, StepTimes]) -> JobSteps:
    """Puts steps of several ranks side by side.

    Args:
        job: For the clocks of the ranks.
        times: By rank, none of them empty.
    """
    number = np.zeros(0, dtype=np.int64)
    for position, each in enumerate(times.values()):
        number = each.number if position == 0 else np.intersect1d(number, each.number)
    chosen = {rank: each.take(np.isin(each.number, number)) for rank, each in times.items()}
    clock = {rank: job.clocks[rank] for rank in chosen}

    def common(rank: int, values: Array) -> Array:
        one = clock[rank]
        shift = one.offset + one.drift * (values - one.at)
        return values + np.round(shift).astype(np.int64)

    shape = (len(chosen), len(number))
    ready = np.array([common(r, t.ready) for r, t in chosen.items()], np.int64).reshape(shape)
    end = np.array([common(r, t.end) for r, t in chosen.items()], np.int64).reshape(shape)
    began = np.array([common(r, t.began) for r, t in chosen.items()], np.int64).reshape(shape)
    all_ready, last_rank, waited_for = _last_ready(chosen, ready, number)
    waiting = np.clip(all_ready - ready, 0, np.maximum(0, end - ready))
    first = next(iter(chosen.values()), None)
    return JobSteps(
        ranks=tuple(chosen),
        number=number,
        own=np.maximum(0, ready - began),
        waiting=waiting,
        exposed=np.maximum(0, end - ready) - waiting,
        overlapped=np.array(
            [t.communicating - t.exposed for t in chosen.values()], np.int64
        ).reshape(shape),
        began=began,
        bytes=number * 0 if first is None else first.bytes,
        last_rank=last_rank,
        waited_for=waited_for,
    )


def _last_ready(
    chosen: dict[int, StepTimes], ready: Array, number: Array
) -> tuple[Array, Array, Array]:
    """Returns by step when all ranks were ready, which was the last, and by how much.

    Rank 0 has noted that for all ranks; without its record it follows from the others.
    """
    first = chosen.get(0)
    if first is not None and bool((first.asked > 0).all()):
        return first.asked, first.last_rank, np.maximum(0, first.asked - first.asked_before)
    if len(ready) < 2:
        latest = ready.max(axis=0) if len(ready) else number * 0
        return latest, number * 0 - 1, number * 0
    order = np.sort(ready, axis=0)
    ranks = np.array(list(chosen))
    return order[-1], ranks[np.argmax(ready, axis=0)], order[-1] - order[-2]
