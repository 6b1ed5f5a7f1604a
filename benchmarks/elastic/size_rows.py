"""Rows of the failure table about ranks that join and leave, and about the store."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

from benchmarks.elastic.faults import Fault
from benchmarks.elastic.job import SECOND, Job
from benchmarks.elastic.outcomes import AT_ONCE, Outcome, choose, end, judge, kill
from benchmarks.elastic.worker import Settings


def joins(folder: Path, seed: int, count: int, **job: Any) -> Outcome:
    """Ranks join while others train, and while others are killed."""
    rng = random.Random(seed)
    options = {"np": 2, "min_np": 1, "max_np": 4, **AT_ONCE, **job}
    left: list[int] = []
    with Job(folder, 2, Settings(), **options) as job_:
        generation = job_.wait_for_size(2, steps=2, after=0)
        for number in range(count):
            before = set(job_.pids)
            job_.set_slots(4)
            job_.wait(lambda b=before: len(set(job_.pids) - b) >= 2, "two workers that start")
            if number % 2 == 0:  # somewhere between the start of a process and its first step
                time.sleep(rng.uniform(0.0, 1.5))
                job_.signal(victim := job_.members()[0])
                job_.planted(victim, "kill")
            generation = job_.wait_for_size(4, steps=2, after=generation)
            job_.set_slots(2)
            left += [one.worker for one in job_.service.record.members]
            generation = job_.wait_for_size(2, steps=2, after=generation)
        return end(job_, "join, and join during a failure", (count + 1) // 2, left)


def flapping(folder: Path, seed: int, count: int, **job: Any) -> Outcome:
    """Hosts come and go all the time; training goes on in between."""
    rng = random.Random(seed)
    options = {"np": 3, "min_np": 1, "max_np": 3, **job}
    with Job(folder, 3, Settings(), **options) as job_:
        job_.wait_for_size(3, steps=2, after=0)
        for _ in range(count):
            job_.set_slots(rng.choice([1, 2, 3]))
            time.sleep(rng.uniform(0.4, 2.0))
        job_.set_slots(3)
        job_.wait_for_size(3, steps=2, after=job_.service.record.generation - 1)
        events = job_.in_order()
        trained = {event["g"] for event in events if event["e"] == "train"}
        committed = {event["g"] for event in events if event["e"] == "commit"}
        ended = end(job_, "flapping hosts", count, list(job_.pids), resets=max(trained))
        empty = [f"generation {one} has no commit" for one in sorted(trained - committed)]
        return ended._replace(wrong=[*ended.wrong, *empty])


def below_min(folder: Path, seed: int, count: int, **job: Any) -> Outcome:
    """With too few ranks the others wait idle until there are enough."""
    rng, busy = random.Random(seed), []
    options = {"np": 3, "min_np": 3, "max_np": 3, **AT_ONCE, **job}
    with Job(folder, 3, Settings(), **options) as job_:
        generation = job_.wait_for_size(3, steps=2, after=0)
        for _ in range(count):
            members = job_.service.record.members
            victim = next(one.worker for one in members if one.slot == 2)
            kill(job_, [victim], ["running"], rng)
            job_.set_slots(2)
            _wait_for_phase(job_, "gathering")
            busy.append(_busy_share(job_, after=1.0, seconds=2.0))
            job_.set_slots(3)
            generation = job_.wait_for_size(3, steps=2, after=generation)
        return end(job_, "below --min-np", count, **{"CPU %": 100 * max(busy)})


def never_enough(folder: Path, seed: int, count: int, **job: Any) -> Outcome:
    """With too few ranks for too long, the job ends."""
    del count
    options = {"np": 2, "min_np": 2, "max_np": 2, "min_wait": 30 * SECOND, **AT_ONCE, **job}
    with Job(folder, 2, Settings(), **options) as job_:
        job_.wait_for_size(2, steps=2, after=0)
        job_.set_slots(1)
        rng = random.Random(seed)
        kill(job_, choose(job_, rng, 1), ["running"], rng)
        code, reason = job_.wait_for_end()
        wrong = [] if code != 0 and "2" in reason else [f"the job ended with {code}: {reason}"]
        return judge(job_, "never enough ranks", 1, wrong)


def above_max(folder: Path, seed: int, count: int, **job: Any) -> Outcome:
    """Workers beyond --max-np wait."""
    del seed, count
    options = {"np": 2, "min_np": 1, "max_np": 2, "spares": 2, **job}
    with Job(folder, 4, Settings(), **options) as job_:
        generation = job_.wait_for_size(2, steps=2, after=0)
        job_.wait_for_spares(2)
        steps = len(job_.events)
        job_.wait(lambda: len(job_.events) > steps + 20, "more steps")
        changed = job_.service.record.generation != generation
        wrong = ["a waiting worker changed the generation"] if changed else []
        ended = end(job_, "above --max-np", 0)
        return ended._replace(wrong=[*ended.wrong, *wrong])


def store_away(folder: Path, seed: int, count: int, **job: Any) -> Outcome:
    """Training goes on without the store; a change of the ranks then ends it."""
    del count
    rng = random.Random(seed)
    options = {"np": 3, "min_np": 1, "max_np": 3, **job}
    with Job(folder, 3, Settings(), **options) as job_:
        job_.wait_for_size(3, steps=2, after=0)
        victim = choose(job_, rng, 1)[0]
        job_.service.close()
        job_.store.close()
        begin = len(job_.events)
        job_.wait(lambda: len(job_.events) > begin + 90, "steps without the store")
        job_.faults.arm(victim, Fault("running", rng.random()))
        job_.wait(lambda: not job_.alive(), "the end of all workers")
        codes = {code for worker, code in job_.exits.items() if worker != victim}
        wrong = [] if codes == {76} else [f"the exit codes are {job_.exits}"]
        return judge(job_, "the store is away", 1, wrong)


def _wait_for_phase(job: Job, phase: str) -> None:
    job.wait(lambda: job.service.phase == phase, f"a job that is {phase}")


def _busy_share(job: Job, after: float, seconds: float) -> float:
    """Returns the largest processor share of a worker over some seconds, after a short wait."""

    def ticks() -> dict[int, int]:
        found = {}
        for worker in job.alive():
            stat = Path(f"/proc/{job.pids[worker]}/stat").read_text().rpartition(")")[2].split()
            found[worker] = int(stat[11]) + int(stat[12])
        return found

    time.sleep(after)
    before = ticks()
    time.sleep(seconds)
    after = ticks()
    return max(after[one] - before[one] for one in before if one in after) / 100 / seconds
