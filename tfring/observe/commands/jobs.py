"""``tfring jobs``: the jobs of this user on this host."""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tfring.observe.explain.causes import HANGS
from tfring.observe.explain.explain import explain_now
from tfring.observe.json_output import add_json_option, print_json
from tfring.observe.live.table import require_rich
from tfring.observe.recorder.choice import KnownJob, find_records, known_jobs
from tfring.observe.recorder.layout import RankState
from tfring.observe.recorder.places import short
from tfring.observe.recorder.reader import RecordError
from tfring.runtime.texts.plain import plain
from tfring.runtime.texts.times import time_text

if TYPE_CHECKING:
    from rich.table import Table

_WIDE = 1000  # letters in a line where there is no terminal
_LEAST = 12  # letters of a program and a folder on a narrow terminal


@dataclass(frozen=True)
class JobRow:
    """A job.

    Attributes:
        id: Its id. Every command also takes the beginning of it.
        state: "starts", "running", "hangs", "failed" or "ended".
        ranks: How many it has; None: unknown.
        began: When it began, in seconds since 1970.
        program: The program and its arguments.
        folder: Where it was started; "": unknown.
    """

    id: str
    state: str
    ranks: int | None
    began: float
    program: str
    folder: str


@dataclass(frozen=True)
class Answer:
    """The jobs of this user on this host.

    Attributes:
        jobs: Those that run, and those that ended in the last day; the newest first.
    """

    jobs: list[JobRow]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.description = (
        "Lists the jobs of this user on this host, also those of mpirun, Slurm and Ray. The "
        "other commands take the beginning of an id."
    )
    parser.epilog = "tfring jobs\ntfring top 6d83ae"
    add_json_option(parser, Answer)


def run(options: argparse.Namespace) -> int:
    """Prints the jobs; returns 0."""
    found = answer()
    if options.json:
        print_json(found)
    elif not found.jobs:
        print("no job of this user runs on this host, and none has ended since yesterday")
    else:
        _print(found.jobs)
    return 0


def answer() -> Answer:
    """Returns the jobs."""
    return Answer([_row(job) for job in known_jobs()])


def find_state(job: KnownJob) -> str:
    """Returns "starts", "running", "hangs", "failed" or "ended"."""
    if job.runs:
        if not job.generations:
            return "starts"
        try:
            return "hangs" if explain_now(find_records(job)).cause in HANGS else "running"
        except (OSError, RecordError):  # it ends just now
            return "running"
    if job.entry is not None and job.entry.end:
        return str(job.entry.end["state"])
    states = [header["state"] for one in job.generations[:1] for header in one.headers]
    return "ended" if states and all(one == RankState.LEFT for one in states) else "failed"


def _row(job: KnownJob) -> JobRow:
    size = job.generations[0].size if job.generations else None
    if size is None and job.entry is not None:
        size = job.entry.end.get("report", {}).get("size")
    return JobRow(job.job, find_state(job), size, job.began, job.program, job.folder)


def _print(rows: list[JobRow]) -> None:
    require_rich()
    from rich.console import Console

    console = Console() if sys.stdout.isatty() else Console(width=_WIDE)
    console.print(make_table(rows, time.time()))


def make_table(rows: list[JobRow], now: float) -> Table:
    """Returns a table with a row for each job.

    Args:
        rows: The jobs.
        now: The time, in seconds since 1970.
    """
    from rich.table import Table
    from rich.text import Text

    found = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for name in ("id", "state", "ranks", "age"):
        found.add_column(name, no_wrap=True)
    found.add_column("program", min_width=_LEAST)
    found.add_column("folder", min_width=_LEAST, overflow="fold")
    for row in rows:
        cells = [short(row.id), row.state, str(row.ranks or "-"), time_text(now - row.began)]
        program = Text(row.program, no_wrap=True, overflow="ellipsis")
        folder = Text(plain(_from_home(row.folder)))
        style = "red" if row.state in ("hangs", "failed") else ""
        found.add_row(*cells, program, folder, style=style)
    return found


def _from_home(folder: str) -> str:
    home = os.path.expanduser("~")
    inside = folder == home or folder.startswith(f"{home}/")
    return f"~{folder[len(home) :]}" if inside else folder or "?"
