"""Runs the planted faults, several jobs at a time, and asks for the explanation of each.

`python planted_runner.py FOLDER [CASE...]` prints a line of JSON for each case. The ranks are
forked from this process, which has loaded everything and never calls init. Each explanation comes
twice: from this process, and from `tfring mcp` through its protocol, which is asked first.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import os
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import assistant
import planted_calls
import planted_ends
import planted_healthy
import planted_waits
from mcp import Client
from planted_cases import CASES, Case, Rank, core

from tfring import world
from tfring.observe.commands import explain
from tfring.observe.json_output import as_object

# Importing them fills CASES.
_SOURCES = (planted_calls, planted_ends, planted_healthy, planted_waits)
AT_A_TIME = 12
START_SECONDS = 60.0


@dataclass
class Job:
    """One case that runs."""

    case: Case
    folder: Path
    pids: list[int]
    ready: int  # a rank writes a byte into the second end when it is at the fault
    began: float
    at_fault: set[int] = field(default_factory=set)
    ask_at: float | None = None
    told: dict[str, Any] = field(default_factory=dict)  # the explanation of this process
    served: asyncio.Task[dict[str, Any]] | None = None  # that of the server


def run_rank(case: Case, rank: int, folder: Path, port: int, ready: int) -> None:
    """Runs one rank in its own process; ends as a program would."""
    os.environ.update(
        TFRING_X_RANK=str(rank),
        TFRING_X_SIZE=str(case.size),
        TFRING_RENDEZVOUS_ADDR="127.0.0.1",
        TFRING_RENDEZVOUS_PORT=str(port),
        TFRING_SECRET="only-for-this-test-0123456789abcdef",
        TFRING_RECORD_DIR=str(folder),
        TFRING_STALL_CHECK_TIME_SECONDS="0",
    )
    os.environ.update(case.settings)
    output = os.open(folder / f"output.{rank}", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    one = Rank(rank, case.size, lambda: os.write(ready, bytes([rank])) and None)
    started = core.init

    def init(options: Any, settings: Any) -> None:
        one.peers = dict(options.data_fds)
        started(options, settings)

    core.init = init
    code = 0
    try:
        world.init()
        case.body(one)
    except SystemExit as error:
        code = int(error.code or 0)
    except BaseException as error:
        sys.last_value = error
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    os._exit(code)


def start(case: Case, base: Path) -> Job:
    """Forks the ranks of a case."""
    folder = base / case.name
    folder.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    pids = []
    for rank in range(case.size):
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            run_rank(case, rank, folder, port, writer)
        pids.append(pid)
    os.close(writer)
    return Job(case, folder, pids, reader, time.monotonic())


async def advance(job: Job, client: Client) -> dict[str, Any] | None:
    """Advances a job by one step; returns its result at the end."""
    with contextlib.suppress(BlockingIOError):
        job.at_fault |= set(os.read(job.ready, 1024))
    now = time.monotonic()
    for pid in job.pids:  # for the explanation a zombie is gone, too
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    if job.ask_at is None:
        if len(job.at_fault) == job.case.size:
            time.sleep(0.15)  # time for the others to get into their calls
            together = job.case.signals if len(job.case.signals) > 1 else ()
            for rank in together:  # so that no rank sees the end of another one
                os.kill(job.pids[rank], signal.SIGSTOP)
            for rank, number in job.case.signals.items():
                os.kill(job.pids[rank], number)
            job.ask_at = time.monotonic() + job.case.wait
        elif now - job.began > START_SECONDS:
            return end(job, {"error": f"at the fault: ranks {sorted(job.at_fault)}"})
        return None
    if job.served is None and now >= job.ask_at:
        asked = assistant.ask(client, "explain", job=str(job.folder))
        job.served = asyncio.create_task(asked)
        await asyncio.sleep(0.02)  # sends the question
        job.told = explain_here(job.folder)
    if job.served is None or not job.served.done():
        return None
    told, served = job.told, job.served.result()
    right, by_mcp = is_right(job.case, told), is_right(job.case, served)
    return end(job, {**told, "right": right, "by_mcp": by_mcp, "served": served})


def explain_here(folder: Path) -> dict[str, Any]:
    """Explains a job in this process; returns the explanation, and how long it took."""
    began, computed = time.monotonic(), time.thread_time()
    told = as_object(explain.answer([str(folder)]))
    took, computed = time.monotonic() - began, time.thread_time() - computed
    return {**told, "seconds": round(took, 2), "computing": round(computed, 2)}


def is_right(case: Case, told: dict[str, Any]) -> bool:
    """Whether an explanation names the cause and the ranks, and has evidence and a next step."""
    return (
        told["cause"] in case.causes
        and told["ranks"] == list(case.ranks)
        and all(part in told["text"] for part in case.says)
        and {rank for line in told["lines"] for rank in line["ranks"]} == set(range(case.size))
        and all(told["evidence"])
        and told["next_step"] != ""
    )


def end(job: Job, outcome: dict[str, Any]) -> dict[str, Any]:
    """Kills the ranks that are left."""
    for pid in job.pids:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    os.close(job.ready)
    wanted = {"wanted": list(job.case.causes), "at": list(job.case.ranks)}
    return {"case": job.case.name, "right": False, "by_mcp": False, **wanted, **outcome}


async def main(base: Path, names: list[str]) -> None:
    """Runs the cases, or all."""
    left = [case for case in CASES if not names or case.name in names]
    running: list[Job] = []
    async with assistant.connected() as client:
        while left or running:
            while left and len(running) < AT_A_TIME:
                running.append(start(left.pop(0), base))
            for job in list(running):
                outcome = await advance(job, client)
                if outcome is not None:
                    running.remove(job)
                    print(json.dumps(outcome), flush=True)
            await asyncio.sleep(0.01)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2:]))
