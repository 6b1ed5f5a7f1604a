"""Shared by the rows of the failure table: the choice of victims, the end of a job, the checks."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from benchmarks.elastic.checks import Events, Recovery, quantiles, recoveries, violations
from benchmarks.elastic.faults import Fault
from benchmarks.elastic.job import SECOND, Job

# Joiners are taken at once; otherwise a row would wait 2 s each time.
AT_ONCE = {"join_interval": SECOND // 10}


class Outcome(NamedTuple):
    """The outcome of one row.

    Attributes:
        row: The name of the row.
        faults: The number of planted faults.
        wrong: The violated promises; empty in a correct run.
        recoveries: The recovery from each fault.
        more: Other numbers.
    """

    row: str
    faults: int
    wrong: list[str]
    recoveries: list[Recovery]
    more: dict[str, Any]

    def line(self) -> dict[str, Any]:
        """Returns a line for a table; times in milliseconds."""
        errors = quantiles(max(one.errors) for one in self.recoveries if one.errors)
        commits = quantiles(one.next_commit for one in self.recoveries if one.next_commit)
        return {
            "row": self.row,
            "faults": self.faults,
            "wrong": len(self.wrong),
            **{f"error {name}": value for name, value in errors.items()},
            **{f"commit {name}": value for name, value in commits.items()},
            **self.more,
        }


def end(job: Job, row: str, faults: int, left: list[int] | None = None, **more: Any) -> Outcome:
    """Lets the training of a job come to its end, and checks all of it."""
    job.faults.stop = True
    code, reason = job.wait_for_end()
    wrong = [] if code == 0 else [f"the job ended with {code}: {reason}"]
    return judge(job, row, faults, wrong, left, **more)


def judge(
    job: Job, row: str, faults: int, wrong: list[str], left: list[int] | None = None, **more: Any
) -> Outcome:
    """Ends the processes that are left of a job, and checks the logs of its workers."""
    job.close()
    events = job.in_order()
    wrong = [
        *wrong,
        *violations(events, job.settings, job.evicted().union(left or ())),
        *_growth(events),
    ]
    wrong += [f"left over: {what}" for what in job.left_over()]
    return Outcome(row, faults, wrong, recoveries(events), more)


def _growth(events: Events) -> list[str]:
    """Checks that a process keeps nothing of the generations that are over."""
    first: dict[tuple[int, int], int] = {}
    wrong = []
    for event in events:
        if event["e"] == "train":
            begin = first.setdefault((event["w"], event["size"]), event["fds"])
            if event["fds"] > begin + 16:
                wrong.append(f"worker {event['w']} has {event['fds']} files, and had {begin}")
    return wrong


def _delay(phase: str, rng: random.Random) -> float:
    if phase in ("negotiating", "running"):
        return rng.uniform(0.02, 0.98)  # of the call
    if phase in ("mesh", "connected", "synced", "first"):
        return rng.choice([0.0, rng.uniform(0.0, 0.05)])
    return 0.0


def choose(job: Job, rng: random.Random, count: int, first: int | None = None) -> list[int]:
    """Returns members in a random order, that of rank `first` first if it is given."""
    members = job.members()
    chosen = rng.sample(members, len(members))
    if first is not None:
        chosen.remove(members[first])
        chosen.insert(0, members[first])
    return chosen[:count]


def kill(job: Job, victims: list[int], phases: list[str], rng: random.Random) -> None:
    """Arms the faults, and waits until these workers are dead."""
    for worker, phase in zip(victims, phases, strict=True):
        job.faults.arm(worker, Fault(phase, _delay(phase, rng)))
    job.wait(lambda: all(worker in job.exits for worker in victims), f"kills in {phases}")
