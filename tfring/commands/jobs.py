"""``tfring jobs``: the jobs of this user on this host."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time

from tfring.commands.which import age
from tfring.explain.causes import HANGS
from tfring.explain.explain import explain_now
from tfring.recorder.choice import KnownJob, known_jobs, records_of
from tfring.recorder.layout import RankState
from tfring.recorder.places import short
from tfring.recorder.reader import RecordError
from tfring.texts.plain import plain

NAME = "jobs"
HELP = "list the jobs of this user on this host: those that run, and those that ended of late"
_COLUMNS = ("id", "state", "ranks", "age", "program", "folder")
_LONGEST_PROGRAM = 40
_RED = "\x1b[31m{}\x1b[0m"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
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


def state_of(job: KnownJob) -> str:
    """Returns "starts", "running", "hangs", "failed" or "ended"."""
    if job.runs:
        if not job.generations:
            return "starts"
        try:
            return "hangs" if explain_now(records_of(job)).cause in HANGS else "running"
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
        "state": state_of(job),
        "ranks": size,
        "began": job.began,
        "program": job.program,
        "folder": job.folder,
    }


def _print(rows: list[dict[str, object]]) -> None:
    now = time.time()
    lines = [list(_COLUMNS)]
    for row in rows:
        command = str(row["program"])
        if len(command) > _LONGEST_PROGRAM:
            command = f"{command[: _LONGEST_PROGRAM - 3]}..."
        lines.append(
            [
                short(str(row["id"])),
                str(row["state"]),
                str(row["ranks"] or "-"),
                age(now - float(str(row["began"]))),
                command,
                plain(_from_home(str(row["folder"]))),
            ]
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(_COLUMNS))]
    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if terminal else None
    for line in lines:
        cells = (cell.ljust(size) for cell, size in zip(line, widths, strict=True))
        text = "  ".join(cells).rstrip()[:width]
        bad = terminal and line[1] in ("hangs", "failed")
        print(_RED.format(text) if bad else text)


def _from_home(folder: str) -> str:
    home = os.path.expanduser("~")
    inside = folder == home or folder.startswith(f"{home}/")
    return f"~{folder[len(home) :]}" if inside else folder or "?"
