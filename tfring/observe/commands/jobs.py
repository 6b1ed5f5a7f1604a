"""``tfring jobs``: the jobs of this user on this host."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time

from tfring.observe.commands.which import age
from tfring.observe.explain.causes import HANGS
from tfring.observe.explain.explain import explain_now
from tfring.observe.recorder.choice import KnownJob, known_jobs, records_of
from tfring.observe.recorder.layout import RankState
from tfring.observe.recorder.places import short
from tfring.observe.recorder.reader import RecordError
from tfring.runtime.texts.plain import plain

_COLUMNS = ("id", "state", "ranks", "age", "program", "folder")
# A program and a folder have so many letters on a narrow terminal.
_LEAST = 12
_RED = "\x1b[31m{}\x1b[0m"


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
    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if terminal else None
    states = ["", *(row["state"] for row in rows)]
    for line, state in zip(table(rows, time.time(), width), states, strict=True):
        print(_RED.format(line) if terminal and state in ("hangs", "failed") else line)


def table(rows: list[dict[str, object]], now: float, width: int | None) -> list[str]:
    """Returns a header and a line for each job.

    Args:
        rows: The jobs.
        now: The time, in seconds since 1970.
        width: Of the terminal; long programs and folders are cut. None: there is none.
    """
    lines = [list(_COLUMNS)]
    for row in rows:
        began = float(str(row["began"]))
        cells = [short(str(row["id"])), str(row["state"]), str(row["ranks"] or "-")]
        cells += [age(now - began), str(row["program"]), plain(_from_home(str(row["folder"])))]
        lines.append(cells)
    widths = [max(len(line[i]) for line in lines) for i in range(len(_COLUMNS))]
    if width is not None:
        left = max(2 * _LEAST, width - sum(widths[:-2]) - 2 * (len(_COLUMNS) - 1))
        widths[-2] = min(widths[-2], max(left // 2, left - widths[-1]))
        widths[-1] = min(widths[-1], left - widths[-2])
    return [
        "  ".join(
            [
                *(cell.ljust(size) for cell, size in zip(line[:-2], widths, strict=False)),
                _begin(line[-2], widths[-2]).ljust(widths[-2]),
                _end(line[-1], widths[-1]),
            ]
        )
        for line in lines
    ]


def _begin(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _end(text: str, most: int) -> str:
    return text if len(text) <= most else f"...{text[3 - most :]}"


def _from_home(folder: str) -> str:
    home = os.path.expanduser("~")
    inside = folder == home or folder.startswith(f"{home}/")
    return f"~{folder[len(home) :]}" if inside else folder or "?"
