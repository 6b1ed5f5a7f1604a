"""``tfring jobs``: the jobs of this user on this host."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import TYPE_CHECKING

from tfring.observe.explain.causes import HANGS
from tfring.observe.explain.explain import explain_now
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


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.description = (
        "Lists the jobs of this user on this host, also those of mpirun, Slurm and Ray. The "
        "other commands take the beginning of an id."
    )
    parser.epilog = "tfring jobs\ntfring top 6d83ae"
    parser.add_argument("--json", action="store_true", help="one JSON object per job")


def run(options: argparse.Namespace) -> int:
    """Prints the jobs; returns 0."""
    rows = [_row(job) for job in known_jobs()]
    if options.json:
        for row in rows:
            print(json.dumps(row))
    elif not rows:
        print("no job of this user runs on this host, and none has ended since yesterday")
    else:
        _print(rows)
    return 0


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


def _row(job: KnownJob) -> dict[str, object]:
    size = job.generations[0].size if job.generations else None
    if size is None and job.entry is not None:
        size = job.entry.end.get("report", {}).get("size")
    return {
        "id": job.job,
        "state": find_state(job),
        "ranks": size,
        "began": job.began,
        "program": job.program,
        "folder": job.folder,
    }


def _print(rows: list[dict[str, object]]) -> None:
    require_rich()
    from rich.console import Console

    console = Console() if sys.stdout.isatty() else Console(width=_WIDE)
    console.print(make_table(rows, time.time()))


def make_table(rows: list[dict[str, object]], now: float) -> Table:
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
        cells = [short(str(row["id"])), str(row["state"]), str(row["ranks"] or "-")]
        cells.append(time_text(now - float(str(row["began"]))))
        program = Text(str(row["program"]), no_wrap=True, overflow="ellipsis")
        folder = Text(plain(_from_home(str(row["folder"]))))
        style = "red" if row["state"] in ("hangs", "failed") else ""
        found.add_row(*cells, program, folder, style=style)
    return found


def _from_home(folder: str) -> str:
    home = os.path.expanduser("~")
    inside = folder == home or folder.startswith(f"{home}/")
    return f"~{folder[len(home) :]}" if inside else folder or "?"
