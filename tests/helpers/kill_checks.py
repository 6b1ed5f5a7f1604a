"""Checks the outcome of a job whose processes were killed."""

from __future__ import annotations

import itertools
import json
import signal
import time
from typing import Any

from kill_plans import ELASTIC, STATIC
from killed_jobs import Job

from benchmarks.elastic.checks import violations
from benchmarks.elastic.worker import Settings, hash_of, value_of

# Recoveries with this victim wait for a coordinator, which listens for 5 s first.
AWAY = "any, no coordinator"


def history_of(steps: int, settings: Settings) -> str:
    """Returns the hash of an undisturbed training of this many steps."""
    history = ""
    for step in range(steps):
        epoch, begin = divmod(step * settings.batch, settings.samples)
        value = value_of(epoch, begin, begin + settings.batch, settings.samples)
        history = hash_of(history, epoch, begin, value)
    return history


def check_codes(job: Job, codes: list[tuple[int, int]]) -> None:
    """Checks that the job ends with 0 if it can go on, and otherwise says why it cannot."""
    nodes = job.plan.nodes
    said = job.errors()
    for host, code in codes:
        if code == -signal.SIGKILL and host in job.launcher_killed:
            continue
        if code == 0:
            continue
        lost = job.lost_host and not job.plan.elastic
        over = "and then a worker failed" in said
        serving = nodes and not job.plan.apart and 0 in job.launcher_killed
        alone = job.lost_coordinator
        late = nodes and code == 2 and any(other == 0 for _, other in codes)  # the job had ended
        if not (lost or over or serving or alone or late) or "tfring run:" not in said:
            job.wrong.append(f"code: the launcher on host {host} ended with {code}")


def check_weights(job: Job, ended: bool) -> list[str]:
    """Checks that all steps, and the end if there is one, equal those of a run without kills."""
    events = sorted(job.logs.read(), key=lambda event: int(event["t"]))
    settings = Settings(steps=job.plan.steps)
    pids = {event["pid"]: event["w"] for event in events if event["e"] == "up"}
    for pid, when in job.doomed.items():
        if pid in pids:
            events.append({"e": "fault", "t": when, "w": pids[pid], "action": "kill"})
    events.sort(key=lambda event: int(event["t"]))
    left: set[int] = set()
    if job.plan.program is STATIC:
        left = set(pids.values())
    wrong = [f"wrong: {text}" for text in violations(events, settings, left)]
    ends = [event for event in events if event["e"] == "end"]
    right = (job.plan.steps, history_of(job.plan.steps, settings))
    wrong += [
        f"wrong: {end} is not {right}" for end in ends if (end["step"], end["history"]) != right
    ]
    if ended and not ends:
        wrong.append("wrong: no rank came to its end")
    return [*wrong, *_check_begins(job, events)]


def _check_begins(job: Job, events: list[dict[str, Any]]) -> list[str]:
    """Checks that a restart from the beginning is reported, and that checkpoints are resumed."""
    wrong, done, saved = [], 0, 0
    elastic = job.plan.program is ELASTIC
    told = "no worker is left that has" in job.errors() or "is left: the training" in job.errors()
    for event in events:
        if event["e"] == "commit":
            done = event["step"]
        elif event["e"] == "saved":
            saved = event["step"]
        elif event["e"] == "train" and event["step"] < saved:
            wrong.append(f"wrong: the checkpoint of step {saved} was lost: {event}")
        elif event["e"] == "train" and elastic and done > event["step"] + 2 and not told:
            wrong.append(f"wrong: steps up to {done} are lost, and nobody says so: {event}")
    return wrong


def recoveries(job: Job) -> list[dict[str, Any]]:
    """Seconds from the detection of a loss to the next step, if members were left."""
    events = sorted(job.logs.read(), key=lambda event: int(event["t"]))
    if not job.plan.elastic:
        return []
    offset = time.time() - time.monotonic()
    told = []
    for path in job.folder.glob("events.*"):
        for line in path.read_text().splitlines():
            one = json.loads(line)
            if one["event"] in ("worker_failed", "host_silent"):
                told.append(int((one["time"] - offset) * 1e9))
    pids = {event["pid"]: event["w"] for event in events if event["e"] == "up"}
    found = []
    without = [kill["t"] for kill in job.killed if kill["victim"] == "coordinator"]
    for kill, after in itertools.zip_longest(job.killed, job.killed[1:]):
        begin, until = kill["t"], after["t"] if after else 1 << 62
        gone = {pids[pid] for pid, when in job.doomed.items() if pid in pids and when <= begin}
        before = [event for event in events if event["t"] < begin and "g" in event]
        generation = max((event["g"] for event in before), default=0)
        members = {event["w"] for event in before if event["g"] == generation}
        stay = members - gone
        later = [event for event in events if event["t"] > begin and event["w"] in stay]
        if kill["ends"] or not members & gone or any(event["e"] == "end" for event in before):
            continue
        noticed = [when for when in told if when > begin]
        noticed += [event["t"] for event in later if event["e"] == "error"]
        steps = [e["t"] for e in later if e["e"] == "commit" and e["g"] > generation]
        if noticed and min(steps, default=until) < until:
            if min(steps) < min(noticed):
                continue  # of the kill before this one
            times = (min(noticed) - begin) / 1e9, (min(steps) - min(noticed)) / 1e9
            away = any(begin - 10**10 <= when <= min(steps) for when in without)
            victim = AWAY if away else kill["victim"]
            found.append({"victim": victim, "noticed": times[0], "step": times[1]})
        elif job.lost_coordinator:
            continue
        elif stay and not after and not any(event["e"] == "end" for event in later):
            found.append({"victim": kill["victim"], "noticed": None, "step": None})
    return found
