"""Runs jobs of `tfring run`, kills their processes at random moments, and checks the outcome.

``python -m random_kills --kills 440`` runs jobs until it has killed that many processes, and
prints a table; ``--kinds`` selects kinds of jobs; ``--seed N --kind K`` repeats one. PYTHONPATH
has the project's folder and tests/helpers. Each job runs in its own namespaces: all processes,
ports and files there are the job's.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import shard_kills
from kill_checks import AWAY, check_codes, check_weights, recoveries
from kill_plans import ELASTIC, KINDS, plan_of
from killed_jobs import Job
from launcher_tools import environment

from benchmarks.elastic.checks import quantiles

_COMMITS = ("lost_commits", "commits")  # of a job whose states are sharded


def run_job(seed: int, kind: str, folder: Path) -> dict[str, Any]:
    """Runs one job in the namespaces of this process; returns its outcome."""
    if kind == shard_kills.KIND:
        return shard_kills.run_job(seed, folder)
    plan = plan_of(seed, kind)
    job = Job(plan, folder)
    begin = time.monotonic()
    job.start()
    for kill in plan.kills:
        if job.running():
            job.kill(kill)
    job.end()
    codes = job.codes[:]
    check_codes(job, codes)
    ended = any(code == 0 for _, code in codes)
    if not ended and not job.wrong and plan.program is not ELASTIC:
        run_again(job)  # from the last checkpoint
    job.wrong += check_weights(job, ended or plan.program is not ELASTIC)
    job.wrong += job.left(failed=bool(job.launcher_killed) or any(code for _, code in codes))
    return {
        "seed": seed,
        "kind": kind,
        "plan": [f"{kill.victim} {kill.moment} {kill.share:.2f}" for kill in plan.kills],
        "killed": [(one["victim"], one["step"]) for one in job.killed],
        "codes": codes,
        "wrong": job.wrong,
        "recoveries": recoveries(job),
        "seconds": round(time.monotonic() - begin, 1),
    }


def run_again(job: Job) -> None:
    """Restarts a job that ended early, as its user would; it goes on from its checkpoint."""
    job.attempt = 1
    if job.hosts is not None:
        for host in range(job.plan.hosts):
            job.hosts.connect(host, connected=True)
        if job.plan.kind.endswith("-hosts"):
            job.serve(1)
    before = len(job.codes)
    job.start()
    job.end()
    if any(code for _, code in job.codes[before:]):
        job.wrong.append(f"code: the job that was started again ended with {job.codes[before:]}")


def isolated(seed: int, kind: str, folder: Path) -> dict[str, Any]:
    """Runs a job in new namespaces; returns its outcome."""
    arguments = [__file__, "--seed", str(seed), "--kind", kind, "--inside", str(folder)]
    done = in_namespaces(arguments, environment())
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        wrong = [f"broken: {done.stdout[-1000:]}{done.stderr[-3000:]}"]
        return {"seed": seed, "kind": kind, "killed": [], "wrong": wrong, "recoveries": []}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def in_namespaces(arguments: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs Python in new namespaces."""
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--net"]
    command += ["--ipc", sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


def set_up_namespaces() -> None:
    """Sets up new namespaces; their first process calls it first."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for place in ("/dev/shm", "/run"):
        subprocess.run(["mount", "-t", "tmpfs", "none", place], check=True)


def run_many(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Runs jobs of all kinds in turn until enough processes were killed."""
    kinds, found, number = options.kinds.split(","), [], 0
    running: set[concurrent.futures.Future[dict[str, Any]]] = set()
    with (
        tempfile.TemporaryDirectory() as base,
        concurrent.futures.ThreadPoolExecutor(options.jobs) as pool,
    ):

        def one(seed: int, kind: str) -> dict[str, Any]:
            folder = Path(base) / f"{kind}-{seed}"
            folder.mkdir()
            result = isolated(seed, kind, folder)
            if result["wrong"] and options.keep:
                shutil.copytree(folder, Path(options.keep) / folder.name, dirs_exist_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
            return result

        while sum(len(each["killed"]) for each in found) < options.kills or running:
            enough = sum(len(each["killed"]) for each in found) >= options.kills
            while len(running) < options.jobs and not enough:
                seed, kind = options.seed + number // len(kinds), kinds[number % len(kinds)]
                running.add(pool.submit(one, seed, kind))
                number += 1
            done, running = concurrent.futures.wait(
                running, return_when=concurrent.futures.FIRST_COMPLETED
            )
            for future in done:
                found.append(future.result())
                print(json.dumps(found[-1]), flush=True)
    return found


def table(found: list[dict[str, Any]]) -> str:
    """Returns the results of many jobs as a Markdown table."""
    kills = collections.Counter(victim for each in found for victim, _ in each["killed"])
    lines = ["| killed | kills | noticed after, s | next step after that, s (median; 95 %; most) |"]
    lines += ["|---|---|---|---|"]
    every = [one for each in found for one in each["recoveries"] if one["step"] is not None]
    for victim in [*sorted(kills), AWAY, "all"]:
        some = [one for one in every if one["victim"] == victim]
        if victim == "all":
            some = [one for one in every if one["victim"] != AWAY]
        texts = []
        for name in ("noticed", "step"):
            q = quantiles((one[name] for one in some), 1.0)
            texts.append("; ".join(f"{value:.2f}" for value in q.values()) or "-")
        count = kills.total() if victim == "all" else kills[victim]
        lines.append(f"| {victim} | {count} | {texts[0]} | {texts[1]} ({len(some)}) |")
    wrong = collections.Counter(text.partition(":")[0] for each in found for text in each["wrong"])
    unfinished = [one for each in found for one in each["recoveries"] if one["step"] is None]
    lines.append(f"{len(found)} jobs; wrong: {dict(wrong)}; no next step: {len(unfinished)}")
    if shards := [each for each in found if "lost_commits" in each]:
        lost, all_of_them = (sum(each[name] for each in shards) for name in _COMMITS)
        lines.append(f"commits lost: {lost} of {all_of_them}")
    return "\n".join(lines)


def main() -> int:
    """Runs the jobs of the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--jobs", type=int, default=1, help="at the same time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=(*KINDS, shard_kills.KIND))
    parser.add_argument("--keep", help="a folder for what jobs leave that go wrong")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        set_up_namespaces()
        print(json.dumps(run_job(options.seed, options.kind, Path(options.inside))))
        return 0
    if options.kind:
        options.kinds, options.kills = options.kind, 1
    found = run_many(options)
    print(table(found))
    return int(any(each["wrong"] for each in found))


if __name__ == "__main__":
    sys.exit(main())
