"""Kills ranks whose optimizer states are sharded, at places that a seed draws.

``python -m random_kills --kinds shards --kills 200`` runs jobs of it. No two ranks that hold copies
of each other's part are lost together, so no commit may be lost.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any, NamedTuple

from elastic_jobs import ElasticJob, wait_for_batches, worker_of_rank
from shard_jobs import (
    PLACES,
    PLACES_OF_RECOVERY,
    assert_like_one_process,
    in_order,
    lost_commits,
    pairs_without_copies,
    plan_deaths,
    start_job,
)

ANYWHERE = "anywhere"
KIND = "shards"
_KILLED = 137
_KILLS = 10  # in a job


class Kill(NamedTuple):
    """One rank that is killed.

    Attributes:
        place: See shard_jobs; ANYWHERE: `pause` s after the others train.
        rank: In the generation in which it comes to the place.
        pause: Seconds.
    """

    place: str
    rank: int
    pause: float = 0.0


class Plan(NamedTuple):
    """One job; the seed determines all of it."""

    optimizer: str
    ranks: int
    losses: list[list[Kill]]  # the kills of each are one loss, or one within the other's recovery


def plan_of(seed: int) -> Plan:
    """Draws a job."""
    rng = random.Random(f"{KIND} {seed}")
    ranks, losses = rng.choice((2, 3, 4, 4)), []
    while sum(map(len, losses)) < _KILLS:
        pairs = pairs_without_copies(ranks)
        if pairs and rng.random() < 0.5:
            one, other = rng.choice(pairs)
            if rng.random() < 0.3:
                pause = rng.uniform(0.0, 0.05)
                losses.append([Kill(ANYWHERE, one, pause), Kill(ANYWHERE, other)])
            else:
                later = other - (one < other)
                first = Kill(rng.choice(PLACES), one)
                losses.append([first, Kill(rng.choice(PLACES_OF_RECOVERY), later)])
        else:
            place = rng.choice([*PLACES, ANYWHERE, ANYWHERE])
            losses.append([Kill(place, rng.randrange(ranks), rng.uniform(0.0, 0.05))])
    return Plan(rng.choice(["Adam", "Lamb"]), ranks, losses)


def run_job(seed: int, folder: Path) -> dict[str, Any]:
    """Runs one job; returns its outcome as random_kills does."""
    plan, wrong = plan_of(seed), []
    begin = time.monotonic()
    killed: list[tuple[str, int]] = []
    recoveries: list[dict[str, Any]] = []
    with start_job(folder, plan.ranks, plan.optimizer, min_np=1) as job:
        try:
            wait_for_batches(job, plan.ranks, 5)
            for loss in plan.losses:
                step = max(one["step"] for one in job.lines("batch"))
                recoveries.append(_lose(job, folder, loss, plan.ranks))
                killed += [(kill.place, step) for kill in loss]
            assert_like_one_process(job, folder, plan.optimizer, ranks=plan.ranks)
        except AssertionError as error:
            wrong = [f"wrong: {error} {job.notes[-5:]} {job.exit_codes}"]
        lost = lost_commits(job.said)
        commits = len({one["commit"] for one in job.lines("settled")})
    wrong += [f"lost: {lost} commits"] if lost else []
    return {
        "seed": seed,
        "kind": KIND,
        "plan": [plan.optimizer, plan.ranks, plan.losses],
        "killed": killed,
        "commits": commits,
        "lost_commits": lost,
        "wrong": wrong,
        "recoveries": recoveries,
        "seconds": round(time.monotonic() - begin, 1),
    }


def _lose(job: ElasticJob, folder: Path, loss: list[Kill], ranks: int) -> dict[str, Any]:
    """Kills, waits until all ranks train again, and returns what the recovery has taken."""
    before = set(job.exit_codes)
    workers = [worker_of_rank(job, kill.rank) for kill in loss]
    said = len(job.said)
    begin = time.monotonic()
    after = f" of {ranks - 1}"  # the first loss
    named = [kill for kill in loss if kill.place != ANYWHERE]
    plan_deaths(folder, [(k.place, f"{k.rank}{'' if k is loss[0] else after}") for k in named])
    for kill, worker in zip(loss, workers, strict=True):
        if kill.place == ANYWHERE:
            time.sleep(kill.pause)
            begin = time.monotonic()
            job.kill(worker)
    job.wait(lambda: len(set(job.exit_codes) - before) >= len(loss))
    wait_for_batches(job, ranks)
    codes = [job.exit_codes[worker] for worker in set(job.exit_codes) - before]
    assert codes == [_KILLED] * len(loss), f"workers have ended with {codes}"
    lines = in_order(job.said[said:])
    deaths = [one["t"] for one in lines if one["event"] == "dies"] or [begin]
    noticed = _first(lines, "noticed", deaths[0])
    step = _first(lines, "batch", _first(lines, "taken", deaths[-1]))
    return {"victim": loss[-1].place, "noticed": noticed - deaths[0], "step": step - noticed}


def _first(lines: list[dict[str, Any]], event: str, after: float) -> float:
    """Returns the time of the first such line after another time."""
    times = [float(one["t"]) for one in lines if one["event"] == event and one["t"] > after]
    assert times, f"no rank has said {event}"
    return times[0]
