"""Kills a user's training again and again; its result must be that of a run without kills.

``python -m user_kills --ranks 2 --kills 100`` runs jobs until it has killed that many processes.
PYTHONPATH has the project's folder and tests/helpers. A job is restarted many times: `tfring run
--max-restarts` starts the ranks again, and this program a launcher that was killed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from kill_plans import Kill, Plan
from killed_jobs import HANG_SECONDS, Job
from launcher_tools import environment
from random_kills import in_namespaces, set_up_namespaces

EPOCHS = 12  # a multiple of the passes of an update, so that training ends with an update
_USER = str(Path(__file__).with_name("killed_user.py"))
# A killed launcher takes all processes with it, so no other restart costs more.
_VICTIMS = ("rank", "rank", "rank", "agent", "launcher")


class UserJob(Job):
    """A job of killed_user.py that is restarted until it ends."""

    def __init__(self, ranks: int, kills: int, folder: Path) -> None:
        super().__init__(Plan("static", ranks, 1, ()), folder)
        self._kills = kills

    def _restarts(self) -> int:
        return self._kills  # a failure without a kill ends the job

    def _command(self) -> list[object]:
        return [sys.executable, _USER, self.folder, EPOCHS]

    def go_on(self) -> bool:
        """Starts the job again if its launcher was killed; returns whether it runs."""
        while not self.running() and self.codes and self.codes[-1][1] != 0:
            if self.codes[-1][1] != -9 or 0 not in self.launcher_killed:
                return False
            self.attempt += 1
            self.start()
        return bool(self.running())

    def finish(self) -> None:
        """Waits for the end of the job, restarting it as needed."""
        seen, since = 0, time.monotonic()
        while self.go_on() and time.monotonic() < since + HANG_SECONDS:
            if len(self.logs.read()) > seen:
                seen, since = len(self.logs.events), time.monotonic()
            time.sleep(0.1)
        self.end()


def next_kill(rng: random.Random, step: int) -> Kill:
    """Draws the next victim and moment: some steps after the last step so far, or very soon."""
    soon = rng.random() < 0.3
    return Kill(
        victim=rng.choice(_VICTIMS),
        moment="soon" if soon else "step",
        share=rng.uniform(0.0, 8.0) if soon else step + rng.randint(1, 8),
        pause=rng.uniform(0.0, 0.05),
        choice=rng.random(),
        silent=False,
        back=False,
    )


def run_job(ranks: int, kills: int, seed: int, folder: Path) -> dict[str, Any]:
    """Runs one job in the namespaces of this process; returns its outcome."""
    rng, job = random.Random(f"{ranks} {seed}"), UserJob(ranks, kills, folder)
    job.start()
    while len(job.killed) < kills and job.go_on():
        job.kill(next_kill(rng, job.logs.step()))
    job.finish()
    if not job.codes or job.codes[-1][1] != 0:
        job.wrong.append(f"code: the job ended with {job.codes}: {job.errors()[-3000:]}")
    events = sorted(job.logs.read(), key=lambda event: int(event["t"]))
    ends = {e["rank"]: {**e, "t": 0, "w": 0} for e in events if e["e"] == "end"}
    steps = [(e["rank"], e["step"], e["samples"]) for e in events if e["e"] == "commit"]
    return {
        "ranks": ranks,
        "seed": seed,
        "killed": [(one["victim"], one["step"]) for one in job.killed],
        "wrong": job.wrong,
        "ends": sorted(ends.items()),
        "steps": sorted({json.dumps(step) for step in steps}),
    }


def isolated(ranks: int, kills: int, seed: int, folder: Path) -> dict[str, Any]:
    """Runs one job in its own namespaces."""
    folder.mkdir()
    numbers = ["--ranks", str(ranks), "--kills", str(kills), "--seed", str(seed)]
    done = in_namespaces([__file__, *numbers, "--inside", str(folder)], environment())
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        wrong = [f"broken: {done.stdout[-1000:]}{done.stderr[-3000:]}"]
        return {"killed": [], "wrong": wrong, "ends": [], "steps": []}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def differences(found: dict[str, Any], clean: dict[str, Any]) -> list[str]:
    """Returns the differences of a job from an undisturbed one."""
    wrong = list(found["wrong"])
    for (rank, end), (_, right) in zip(found["ends"], clean["ends"], strict=False):
        wrong += [
            f"wrong: {key} of rank {rank} is {end[key]}, and not {right[key]}"
            for key in right
            if end[key] != right[key]
        ]
    if len(found["ends"]) != len(clean["ends"]):
        wrong.append(f"wrong: {len(found['ends'])} ranks came to the end")
    others = set(found["steps"]) ^ set(clean["steps"])
    wrong += [f"wrong: the samples of [rank, step]: {step}" for step in sorted(others)[:10]]
    return wrong


def main() -> int:
    """Runs the jobs of the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--per-job", type=int, default=25)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        set_up_namespaces()
        done = run_job(options.ranks, options.kills, options.seed, Path(options.inside))
        print(json.dumps(done))
        return 0
    killed, wrong, seed = 0, 0, options.seed
    with tempfile.TemporaryDirectory() as base:
        clean = isolated(options.ranks, 0, 0, Path(base) / "clean")
        while killed < options.kills and not clean["wrong"]:
            most = min(options.per_job, options.kills - killed)
            found = isolated(options.ranks, most, seed, Path(base) / f"job{seed}")
            texts = differences(found, clean)
            killed, wrong, seed = killed + len(found["killed"]), wrong + len(texts), seed + 1
            print(json.dumps({"killed": found["killed"], "wrong": texts}), flush=True)
    print(f"{killed} kills, {wrong} wrong; the clean run: {clean['wrong'] or 'right'}")
    return int(bool(wrong or clean["wrong"]))


if __name__ == "__main__":
    sys.exit(main())
