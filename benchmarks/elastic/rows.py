"""The rows of the failure table: each is one job with faults chosen by a seed."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.elastic.checks import Events, Recovery, quantiles, recoveries, violations
from benchmarks.elastic.faults import CUT, RAISE, RECOVERY_PHASES, STEP_PHASES, STOP, Fault
from benchmarks.elastic.job import SECOND, Job
from benchmarks.elastic.worker import Settings

# Phases that a worker comes to only after another one was lost.
_LATER = ("sync", "report", "mesh", "first")
# Joiners are taken at once; else a row would wait for two seconds each time.
_AT_ONCE = {"join_interval": SECOND // 10}


class Outcome(NamedTuple):
    """What became of one row.

    Attributes:
        row: Its name.
        faults: How many were planted.
        wrong: What went against a promise; a correct run has nothing here.
        recoveries: What followed each fault.
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


def _end(job: Job, row: str, faults: int, left: list[int] | None = None, **more: Any) -> Outcome:
    """Ends a job whose training is to come to its end, and checks all of it."""
    job.faults.stop = True
    code, reason = job.wait_for_end()
    wrong = [] if code == 0 else [f"the job ended with {code}: {reason}"]
    return _judge(job, row, faults, wrong, left, **more)


def _judge(
    job: Job, row: str, faults: int, wrong: list[str], left: list[int] | None = None, **more: Any
) -> Outcome:
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
    """A process that lives through many generations keeps nothing of those that are over."""
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


def _victims(job: Job, rng: random.Random, count: int, first: int | None = None) -> list[int]:
    """Returns members in a random order, beginning with that of rank `first` if it is given."""
    members = job.members()
    chosen = rng.sample(members, len(members))
    if first is not None:
        chosen.remove(members[first])
        chosen.insert(0, members[first])
    return chosen[:count]


def _kill(job: Job, victims: list[int], phases: list[str], rng: random.Random) -> None:
    """Arms the faults, and waits until these workers are dead."""
    for worker, phase in zip(victims, phases, strict=True):
        job.faults.arm(worker, Fault(phase, _delay(phase, rng)))
    job.wait(lambda: all(worker in job.exits for worker in victims), f"kills in {phases}")


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
        count: Kills that are asked for; phases of a recovery need one more each.
        ranks: Of the job.
        spares: Workers that wait.
        settings: Of the workers.
        **job: More for the job.
    """
    rng, planted, smaller = random.Random(seed), 0, 0
    options = {"np": ranks, "min_np": 1, "max_np": ranks, "spares": spares, **_AT_ONCE, **job}
    with Job(folder, ranks + spares, settings or Settings(), **options) as job_:
        generation = job_.wait_for_size(ranks, steps=2, after=0)
        for number in range(count):
            job_.wait_for_spares(spares)
            phase = STEP_PHASES[number % len(STEP_PHASES)]
            phases = ["running", phase] if phase in _LATER else [phase]
            victims = _victims(job_, rng, len(phases), 0 if number % 4 == 3 else None)
            _kill(job_, victims, phases, rng)
            planted += len(victims)
            generation = job_.wait_for_size(ranks, steps=2, after=generation)
        if spares:
            smaller = sum(e["e"] == "train" and e["size"] < ranks for e in job_.in_order())
        name = "SIGKILL in each phase" + (", a spare is parked" if spares else "")
        return _end(job_, name, planted, **({"smaller": smaller} if spares else {}))


def several(folder: Path, seed: int, count: int, **job: Any) -> Outcome:
    """Three of four ranks are killed within 50 ms."""
    rng = random.Random(seed)
    options = {"np": 4, "min_np": 1, "max_np": 4, **_AT_ONCE, **job}
    with Job(folder, 4, Settings(), **options) as job_:
        generation = job_.wait_for_size(4, steps=2, after=0)
        for _ in range(count):
            victims = _victims(job_, rng, 3)
            for worker in victims:
                job_.faults.arm(worker, Fault("between", rng.uniform(0.0, 0.05)))
            job_.wait(lambda v=victims: all(one in job_.exits for one in v), "three kills")
            generation = job_.wait_for_size(4, steps=2, after=generation)
        return _end(job_, "3 of 4 within 50 ms", 3 * count)


def in_recovery(folder: Path, seed: int, count: int, **job: Any) -> Outcome:
    """While the ranks recover from a kill, another one is killed."""
    rng = random.Random(seed)
    options = {"np": 4, "min_np": 1, "max_np": 4, **_AT_ONCE, **job}
    with Job(folder, 4, Settings(), **options) as job_:
        generation = job_.wait_for_size(4, steps=2, after=0)
        for number in range(count):
            phase = RECOVERY_PHASES[number % len(RECOVERY_PHASES)]
            victims = _victims(job_, rng, 2, 0 if number % 3 == 2 else None)
            _kill(job_, victims, ["running", phase][:: rng.choice([1, -1])], rng)
            generation = job_.wait_for_size(4, steps=2, after=generation)
        return _end(job_, "kill in each phase of a recovery", 2 * count)


def stopped(folder: Path, seed: int, count: int, **job: Any) -> Outcome:
    """A rank stands still: it is evicted, and leaves when it goes on."""
    rng, wrong, evicted = random.Random(seed), [], []
    options = {"np": 3, "min_np": 1, "max_np": 3, "kills": False, **_AT_ONCE, **job}
    with Job(folder, 4, Settings(), **options) as job_:
        generation = job_.wait_for_size(3, steps=2, after=0)
        for number in range(count):
            victim = _victims(job_, rng, 1, 0 if number % 2 else None)[0]
            begin = job_.planted(victim, STOP)
            job_.signal(victim, signal.SIGSTOP)
            generation = job_.wait_for_size(3, steps=2, after=generation)
            evicted.append((time.monotonic_ns() - begin) / 1e9)
            job_.signal(victim, signal.SIGCONT)
            job_.wait(lambda v=victim: v in job_.exits, "the end of a rank that was evicted")
            if job_.exits[victim] != 75:
                wrong.append(f"worker {victim} was fenced, and ended with {job_.exits[victim]}")
        ended = _end(job_, "SIGSTOP", count, **{"evicted after s": max(evicted)})
        return ended._replace(wrong=[*ended.wrong, *wrong])


def raises(folder: Path, seed: int, count: int, **job: Any) -> Outcome:
    """An exception ends its process and no other."""
    rng, wrong = random.Random(seed), []
    options = {"np": 3, "min_np": 1, "max_np": 3, **_AT_ONCE, **job}
    with Job(folder, 3, Settings(), **options) as job_:
        generation = job_.wait_for_size(3, steps=2, after=0)
        for number in range(count):
            victim = _victims(job_, rng, 1, 0 if number % 3 == 2 else None)[0]
            job_.faults.arm(victim, Fault("between", action=RAISE))
            generation = job_.wait_for_size(3, steps=2, after=generation)
            if job_.exits.get(victim) != 1:
                wrong.append(f"worker {victim} raised, and ended with {job_.exits.get(victim)}")
        ended = _end(job_, "exception", count)
        return ended._replace(wrong=[*ended.wrong, *wrong])


def same_error(folder: Path, seed: int, count: int, **job: Any) -> Outcome:
    """All ranks fail at the same step each time: the job ends and says why."""
    del seed, count
    options = {"np": 3, "min_np": 1, "max_np": 3, **_AT_ONCE, **job}
    with Job(folder, 3, Settings(fail_at=5), **options) as job_:
        code, reason = job_.wait_for_end()
        wrong = [] if code == 1 and "step 5 cannot" in reason else [f"{code}: {reason}"]
        failed = {e["w"] for e in job_.in_order() if e["e"] == "error" and "cannot" in e["text"]}
        # Two of them at most before a generation begins at the step, three there, and those that
        # failed beside the last one.
        wrong += [f"workers {sorted(failed)} had to fail first"] if len(failed) > 7 else []
        row = "the same error at the same step"
        return _judge(job_, row, len(failed), wrong, list(job_.pids))


def cut(folder: Path, seed: int, count: int, **job: Any) -> Outcome:
    """A rank loses its connections with other ranks, and keeps that with the coordinator."""
    rng = random.Random(seed)
    options = {"np": 4, "min_np": 1, "max_np": 4, **_AT_ONCE, **job}
    with Job(folder, 4, Settings(), **options) as job_:
        generation = job_.wait_for_size(4, steps=2, after=0)
        for number in range(count):
            victim = _victims(job_, rng, 1, 0 if number % 2 else None)[0]
            job_.faults.arm(victim, Fault("running", rng.random(), CUT))
            generation = job_.wait_for_size(4, steps=2, after=generation)
        return _end(job_, "a rank is cut from other ranks", count)


def joins(folder: Path, seed: int, count: int, **job: Any) -> Outcome:
    """Ranks join while others train, and while others are killed."""
    rng = random.Random(seed)
    options = {"np": 2, "min_np": 1, "max_np": 4, **_AT_ONCE, **job}
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
            left += [int(one["worker"]) for one in job_.service.status()["members"]]
            generation = job_.wait_for_size(2, steps=2, after=generation)
        return _end(job_, "join, and join during a failure", (count + 1) // 2, left)


def flapping(folder: Path, seed: int, count: int, **job: Any) -> Outcome:
    """Hosts come and go all the time: training goes on in between."""
    rng = random.Random(seed)
    options = {"np": 3, "min_np": 1, "max_np": 3, **job}
    with Job(folder, 3, Settings(), **options) as job_:
        job_.wait_for_size(3, steps=2, after=0)
        for _ in range(count):
            job_.set_slots(rng.choice([1, 2, 3]))
            time.sleep(rng.uniform(0.4, 2.0))
        job_.set_slots(3)
        job_.wait_for_size(3, steps=2, after=int(job_.service.status()["generation"]) - 1)
        events = job_.in_order()
        trained = {event["g"] for event in events if event["e"] == "train"}
        committed = {event["g"] for event in events if event["e"] == "commit"}
        ended = _end(job_, "flapping hosts", count, list(job_.pids), resets=max(trained))
        empty = [f"generation {one} has no commit" for one in sorted(trained - committed)]
        return ended._replace(wrong=[*ended.wrong, *empty])


def below_min(folder: Path, seed: int, count: int, **job: Any) -> Outcome:
    """With too few ranks the others wait, at rest, until there are enough; or the job ends."""
    rng, busy = random.Random(seed), []
    options = {"np": 3, "min_np": 3, "max_np": 3, **_AT_ONCE, **job}
    with Job(folder, 3, Settings(), **options) as job_:
        generation = job_.wait_for_size(3, steps=2, after=0)
        for _ in range(count):
            members = job_.service.status()["members"]
            victim = next(one["worker"] for one in members if one["slot"] == 2)
            _kill(job_, [victim], ["running"], rng)
            job_.set_slots(2)
            _wait_for_phase(job_, "gathering")
            busy.append(_busy_share(job_, after=1.0, seconds=2.0))
            job_.set_slots(3)
            generation = job_.wait_for_size(3, steps=2, after=generation)
        return _end(job_, "below --min-np", count, **{"CPU %": 100 * max(busy)})


def never_enough(folder: Path, seed: int, count: int, **job: Any) -> Outcome:
    """With too few ranks for too long the job ends."""
    del count
    options = {"np": 2, "min_np": 2, "max_np": 2, "min_wait": 30 * SECOND, **_AT_ONCE, **job}
    with Job(folder, 2, Settings(), **options) as job_:
        job_.wait_for_size(2, steps=2, after=0)
        job_.set_slots(1)
        rng = random.Random(seed)
        _kill(job_, _victims(job_, rng, 1), ["running"], rng)
        code, reason = job_.wait_for_end()
        wrong = [] if code != 0 and "2" in reason else [f"the job ended with {code}: {reason}"]
        return _judge(job_, "never enough ranks", 1, wrong)


def above_max(folder: Path, seed: int, count: int, **job: Any) -> Outcome:
    """Workers beyond --max-np wait."""
    del seed, count
    options = {"np": 2, "min_np": 1, "max_np": 2, "spares": 2, **job}
    with Job(folder, 4, Settings(), **options) as job_:
        generation = job_.wait_for_size(2, steps=2, after=0)
        job_.wait_for_spares(2)
        steps = len(job_.events)
        job_.wait(lambda: len(job_.events) > steps + 20, "more steps")
        changed = int(job_.service.status()["generation"]) != generation
        wrong = ["a parked worker changed the generation"] if changed else []
        ended = _end(job_, "above --max-np", 0)
        return ended._replace(wrong=[*ended.wrong, *wrong])


def store_away(folder: Path, seed: int, count: int, **job: Any) -> Outcome:
    """Without the store training goes on; a change of the ranks then ends it."""
    del count
    rng = random.Random(seed)
    options = {"np": 3, "min_np": 1, "max_np": 3, **job}
    with Job(folder, 3, Settings(), **options) as job_:
        job_.wait_for_size(3, steps=2, after=0)
        victim = _victims(job_, rng, 1)[0]
        job_.service.close()
        job_.store.close()
        begin = len(job_.events)
        job_.wait(lambda: len(job_.events) > begin + 90, "steps without the store")
        job_.faults.arm(victim, Fault("running", rng.random()))
        job_.wait(lambda: not job_.alive(), "the end of all workers")
        codes = {code for worker, code in job_.exits.items() if worker != victim}
        wrong = [] if codes == {75} else [f"the exit codes are {job_.exits}"]
        return _judge(job_, "the store is away", 1, wrong)


def _wait_for_phase(job: Job, phase: str) -> None:
    job.wait(lambda: job.service.status()["phase"] == phase, f"a job that is {phase}")


def _busy_share(job: Job, after: float, seconds: float) -> float:
    """Returns the largest share of a processor that a worker needs in some seconds, a bit later."""

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


Row = Callable[..., Outcome]
# Every row, and how many faults `make soak` plants.
ROWS: dict[str, tuple[Row, int]] = {
    "several": (several, 50),
    "recovery": (in_recovery, 60),
    "stopped": (stopped, 10),
    "raises": (raises, 50),
    "same_error": (same_error, 1),
    "cut": (cut, 50),
    "joins": (joins, 20),
    "flapping": (flapping, 60),
    "below_min": (below_min, 20),
    "never_enough": (never_enough, 1),
    "above_max": (above_max, 1),
    "store_away": (store_away, 1),
}
