"""The rows of the failure table: each is one job with faults chosen by a seed."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.elastic import size_rows
from benchmarks.elastic.faults import (
    CUT,
    LEAVE,
    RAISE,
    RECOVERY_PHASES,
    STEP_PHASES,
    STOP,
    Fault,
)
from benchmarks.elastic.job import Job
from benchmarks.elastic.outcomes import AT_ONCE, Outcome, choose, end, judge, kill
from benchmarks.elastic.worker import Settings

# Phases that a worker reaches only after another worker was lost.
_LATER = ("sync", "report", "mesh", "first")


def kills(
    folder: Path,
    seed: int,
    count: int,
    *,
    ranks: int = 4,
    spares: int = 0,
    settings: Settings | None = None,
    **job: Any,
) -> Outcome:
    """SIGKILL in each phase of a step, also of rank 0; with spares the size stays.

    Args:
        folder: For logs.
        seed: Chooses victims and moments.
        count: The number of kills; phases of a recovery need one more each.
        ranks: The number of ranks of the job.
        spares: The number of workers that wait.
        settings: The settings of the workers.
        **job: Additional arguments of the job.
    """
    rng, planted, smaller = random.Random(seed), 0, 0
    options = {"np": ranks, "min_np": 1, "max_np": ranks, "spares": spares, **AT_ONCE, **job}
    with Job(folder, ranks + spares, settings or Settings(), **options) as job_:
        generation = job_.wait_for_size(ranks, steps=2, after=0)
        for number in range(count):
            job_.wait_for_spares(spares)
            phase = STEP_PHASES[number % len(STEP_PHASES)]
            phases = ["running", phase] if phase in _LATER else [phase]
            victims = choose(job_, rng, len(phases), 0 if number % 4 == 3 else None)
            kill(job_, victims, phases, rng)
            planted += len(victims)
            generation = job_.wait_for_size(ranks, steps=2, after=generation)
        if spares:
            smaller = sum(e["e"] == "train" and e["size"] < ranks for e in job_.in_order())
        name = "SIGKILL in each phase" + (", a spare is waiting" if spares else "")
        return end(job_, name, planted, **({"smaller": smaller} if spares else {}))


def several(folder: Path, seed: int, count: int, **job: Any) -> Outcome:
    """Three of four ranks are killed within 50 ms."""
    rng = random.Random(seed)
    options = {"np": 4, "min_np": 1, "max_np": 4, **AT_ONCE, **job}
    with Job(folder, 4, Settings(), **options) as job_:
        generation = job_.wait_for_size(4, steps=2, after=0)
        for _ in range(count):
            victims = choose(job_, rng, 3)
            for worker in victims:
                job_.faults.arm(worker, Fault("between", rng.uniform(0.0, 0.05)))
            job_.wait(lambda v=victims: all(one in job_.exits for one in v), "three kills")
            generation = job_.wait_for_size(4, steps=2, after=generation)
        return end(job_, "3 of 4 within 50 ms", 3 * count)


def in_recovery(folder: Path, seed: int, count: int, **job: Any) -> Outcome:
    """A rank is killed while the ranks recover from a kill."""
    rng = random.Random(seed)
    options = {"np": 4, "min_np": 1, "max_np": 4, **AT_ONCE, **job}
    with Job(folder, 4, Settings(), **options) as job_:
        generation = job_.wait_for_size(4, steps=2, after=0)
        for number in range(count):
            phase = RECOVERY_PHASES[number % len(RECOVERY_PHASES)]
            victims = choose(job_, rng, 2, 0 if number % 3 == 2 else None)
            kill(job_, victims, ["running", phase][:: rng.choice([1, -1])], rng)
            generation = job_.wait_for_size(4, steps=2, after=generation)
        return end(job_, "kill in each phase of a recovery", 2 * count)


def stopped(folder: Path, seed: int, count: int, **job: Any) -> Outcome:
    """A stopped rank is evicted, and leaves when it goes on."""
    rng, wrong, evicted = random.Random(seed), [], []
    options = {"np": 3, "min_np": 1, "max_np": 3, "kills": False, **AT_ONCE, **job}
    with Job(folder, 4, Settings(), **options) as job_:
        generation = job_.wait_for_size(3, steps=2, after=0)
        for number in range(count):
            victim = choose(job_, rng, 1, 0 if number % 2 else None)[0]
            begin = job_.planted(victim, STOP)
            job_.signal(victim, signal.SIGSTOP)
            generation = job_.wait_for_size(3, steps=2, after=generation)
            evicted.append((time.monotonic_ns() - begin) / 1e9)
            job_.signal(victim, signal.SIGCONT)
            job_.wait(lambda v=victim: v in job_.exits, "the end of a rank that was evicted")
            if job_.exits[victim] != 76:
                wrong.append(f"worker {victim} was excluded, and ended with {job_.exits[victim]}")
        ended = end(job_, "SIGSTOP", count, **{"evicted after s": max(evicted)})
        return ended._replace(wrong=[*ended.wrong, *wrong])


def _end_by_themselves(
    job: Job, rng: random.Random, count: int, action: str, code: int
) -> list[str]:
    """Lets ranks of three end between two steps; others take their places.

    Args:
        job: The running job.
        rng: Chooses the ranks; every third is rank 0.
        count: The number of ranks that end.
        action: How they end.
        code: The expected exit code of each.

    Returns:
        The violated expectations.
    """
    wrong = []
    generation = job.wait_for_size(3, steps=2, after=0)
    for number in range(count):
        victim = choose(job, rng, 1, 0 if number % 3 == 2 else None)[0]
        job.faults.arm(victim, Fault("between", action=action))
        generation = job.wait_for_size(3, steps=2, after=generation)
        if (found := job.exits.get(victim)) != code:
            wrong.append(f"worker {victim} was to {action}, and ended with {found}")
    return wrong


def raises(folder: Path, seed: int, count: int, **job: Any) -> Outcome:
    """An exception ends only its own process."""
    options = {"np": 3, "min_np": 1, "max_np": 3, **AT_ONCE, **job}
    with Job(folder, 3, Settings(), **options) as job_:
        wrong = _end_by_themselves(job_, random.Random(seed), count, RAISE, 1)
        ended = end(job_, "exception", count)
        return ended._replace(wrong=[*ended.wrong, *wrong])


def leaves(folder: Path, seed: int, count: int, **job: Any) -> Outcome:
    """A rank ends with exit code 0, and a second one at the end, when all wait for each other."""
    rng = random.Random(seed)
    options = {"np": 3, "min_np": 1, "max_np": 3, **AT_ONCE, **job}
    with Job(folder, 3, Settings(), **options) as job_:
        wrong = _end_by_themselves(job_, rng, count, LEAVE, 0)
        # Before it reports its end, or while it waits for the others.
        last = choose(job_, rng, 1)[0]
        job_.faults.arm(last, Fault("report", rng.choice([0.0, rng.uniform(0.0, 0.02)])))
        ended = end(job_, "exit code 0", count + 1)
        events = job_.in_order()
        through = {event["w"] for event in events if event["e"] == "end"}
        members = next(event["members"] for event in reversed(events) if event["e"] == "train")
        if missing := set(members) - through - {last}:
            wrong.append(f"workers {sorted(missing)} did not come to the end")
        return ended._replace(wrong=[*ended.wrong, *wrong])


def same_error(folder: Path, seed: int, count: int, **job: Any) -> Outcome:
    """All ranks fail at the same step each time: the job ends and says why."""
    del seed, count
    options = {"np": 3, "min_np": 1, "max_np": 3, **AT_ONCE, **job}
    with Job(folder, 3, Settings(fail_at=5), **options) as job_:
        code, reason = job_.wait_for_end()
        wrong = [] if code == 1 and "step 5 cannot" in reason else [f"{code}: {reason}"]
        failed = {e["w"] for e in job_.in_order() if e["e"] == "error" and "cannot" in e["text"]}
        # Three generations of three workers at one commit end the job. A worker that fails has not
        # reported its last commits if the machine is busy, so this can begin again at each of them.
        most = 3 * 3 * 5
        wrong += [f"workers {sorted(failed)} had to fail first"] if len(failed) > most else []
        row = "the same error at the same step"
        return judge(job_, row, len(failed), wrong, list(job_.pids))


def cut(folder: Path, seed: int, count: int, **job: Any) -> Outcome:
    """A rank loses its connections with other ranks, but not the one with the coordinator."""
    rng = random.Random(seed)
    options = {"np": 4, "min_np": 1, "max_np": 4, **AT_ONCE, **job}
    with Job(folder, 4, Settings(), **options) as job_:
        generation = job_.wait_for_size(4, steps=2, after=0)
        for number in range(count):
            victim = choose(job_, rng, 1, 0 if number % 2 else None)[0]
            job_.faults.arm(victim, Fault("running", rng.random(), CUT))
            generation = job_.wait_for_size(4, steps=2, after=generation)
        return end(job_, "a rank is cut from other ranks", count)


Row = Callable[..., Outcome]
# Every row, and how many faults `make soak` plants.
ROWS: dict[str, tuple[Row, int]] = {
    "several": (several, 50),
    "recovery": (in_recovery, 60),
    "stopped": (stopped, 10),
    "raises": (raises, 50),
    "leaves": (leaves, 50),
    "same_error": (same_error, 1),
    "cut": (cut, 50),
    "joins": (size_rows.joins, 20),
    "flapping": (size_rows.flapping, 60),
    "below_min": (size_rows.below_min, 20),
    "never_enough": (size_rows.never_enough, 1),
    "above_max": (size_rows.above_max, 1),
    "store_away": (size_rows.store_away, 1),
}
