"""The training steps of all ranks of a job, side by side on one clock.

If a program has several optimizers, these are the rounds of tfring/observe/recorder/rounds.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tfring.observe.recorder import layout
from tfring.observe.recorder.gradients import Array
from tfring.observe.recorder.job import JobRecords
from tfring.observe.recorder.rounds import Rounds, find_idle, rounds_of
from tfring.observe.recorder.steps import Steps, align_steps, steps_of


@dataclass(frozen=True)
class JobSteps:
    """The steps that the records of all ranks still have; times in nanoseconds.

    Each step of a rank has three parts: its own work (input, forward and backward pass, update,
    callbacks), waiting for other ranks, and communication that no computation hid.

    Attributes:
        ranks: The ranks with records.
        number: The steps, from 1 on.
        own: By rank and step: own work.
        waiting: By rank and step: from this rank's last gradients until all ranks had theirs.
        exposed: By rank and step: from then until the gradients were reduced.
        last_rank: By step: the rank that was ready last; -1: unknown.
        waited_for: By step: how long all others waited for that rank.
    """

    ranks: tuple[int, ...]
    number: Array
    own: Array
    waiting: Array
    exposed: Array
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
        """Returns how long all others waited for each rank, in nanoseconds."""
        named = sorted({*self.ranks, *self.last_rank[self.last_rank >= 0].tolist()})
        return {rank: int(self.waited_for[self.last_rank == rank].sum()) for rank in named}


def find_job_steps(job: JobRecords) -> JobSteps:
    """Returns the steps that all records of a job have.

    Ranks that have none of the steps of the rank with the newest step are left out.
    """
    found = align_steps({rank: steps_of(record.raw_calls) for rank, record in job.records.items()})
    found = {rank: steps.good() for rank, steps in found.items()}
    rounds = _newest_rounds(job, found)
    places: dict[int, Array] = {}
    kept = np.ones(len(rounds), dtype=bool)
    for rank, steps in found.items():
        at, known = _same_steps(rounds.steps, steps)
        if len(steps):
            known[rounds.last] &= steps.began[at[rounds.last]] > 0
        whole = rounds.sums((~known).astype(np.int64)) == 0
        if whole.any():
            places[rank] = at
            kept &= whole
    of_kept = np.repeat(kept, np.diff(np.append(rounds.starts, len(rounds.steps))))
    chosen = {rank: found[rank].take(at[of_kept]) for rank, at in places.items()}
    return _side_by_side(job, rounds.take(kept), chosen)


def _newest_rounds(job: JobRecords, found: dict[int, Steps]) -> Rounds:
    """Returns the rounds of the rank with the newest one; a lost rank lacks it."""
    rounds = {rank: rounds_of(steps) for rank, steps in found.items()}
    ends = {rank: job.common(rank, int(one.end[-1])) for rank, one in rounds.items() if len(one)}
    if not ends:
        return rounds_of(steps_of(np.zeros(0, layout.CALL)))
    return rounds[max(ends, key=lambda rank: ends[rank])]


def _same_steps(wanted: Steps, steps: Steps) -> tuple[Array, Array]:
    """Returns where steps of one rank are among those of another, and a mask of those found."""
    position = {name: at for at, name in enumerate(wanted.names)}
    series = np.array([position.get(name, -1) for name in steps.names], dtype=np.int64)
    own = zip(series[steps.series].tolist(), steps.number.tolist(), strict=True)
    there = {key: at for at, key in enumerate(own)}
    keys = zip(wanted.series.tolist(), wanted.number.tolist(), strict=True)
    at = np.array([there.get(key, -1) for key in keys], dtype=np.int64)
    return np.maximum(at, 0), at >= 0


def _side_by_side(job: JobRecords, rounds: Rounds, chosen: dict[int, Steps]) -> JobSteps:
    """Puts the same steps of several ranks side by side.

    Args:
        job: For the clocks of the ranks.
        rounds: The rounds of the steps.
        chosen: By rank, in the order of the steps of `rounds`.
    """

    def common(rank: int, values: Array) -> Array:
        clock = job.clocks[rank]
        shift = clock.offset + clock.drift * (values - clock.at)
        moved: Array = values + np.round(shift).astype(np.int64)
        return moved

    def table(rows: list[Array], columns: int = len(rounds.steps)) -> Array:
        return np.array(rows, np.int64).reshape(len(chosen), columns)

    ready = table([common(r, s.ready) for r, s in chosen.items()])
    end = table([common(r, s.end) for r, s in chosen.items()])
    began = table([common(r, s.began[rounds.last]) for r, s in chosen.items()], len(rounds))
    all_ready, last_rank, waited_for = _last_ready(chosen, ready, rounds.steps.number)
    idle = find_idle(ready, end)
    waiting = np.clip(all_ready - idle, 0, np.maximum(0, end - idle))
    exposed = np.maximum(0, end - idle)
    # The rank that a round is charged to is the one that was waited for longest in it.
    worst = rounds.largest(waited_for)
    return JobSteps(
        ranks=tuple(chosen),
        number=rounds.number,
        own=np.maximum(0, end[:, rounds.last] - began - rounds.sums(exposed)),
        waiting=rounds.sums(waiting),
        exposed=rounds.sums(exposed - waiting),
        last_rank=last_rank[worst],
        waited_for=waited_for[worst],
    )


def _last_ready(
    chosen: dict[int, Steps], ready: Array, number: Array
) -> tuple[Array, Array, Array]:
    """Returns by step when all ranks were ready, which was last, and how long the others waited.

    Rank 0's record has this of all ranks; without it, it follows from the others.
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
