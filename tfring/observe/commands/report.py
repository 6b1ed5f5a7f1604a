"""``tfring report``: where the time of a job goes, and which rank is slow."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tfring.observe.commands.verdict import make_verdict
from tfring.observe.commands.which import add_job_argument, find_ended, resolve_job
from tfring.observe.recorder.catalog import JobNote
from tfring.observe.recorder.job import load_job
from tfring.observe.recorder.reader import RecordError
from tfring.observe.report.page import make_page
from tfring.observe.report.summary import make_report
from tfring.observe.report.text import print_report


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.description = (
        "Shows where the time of a job goes: own work, input, callbacks, exchange, waiting for "
        "other ranks. It knows a job for a day after its end."
    )
    parser.epilog = "tfring report\ntfring report 6d83ae --html report.html"
    add_job_argument(parser)
    parser.add_argument(
        "--html", metavar="FILE", help="write a page with plots, which needs no network"
    )
    parser.add_argument(
        "--internals",
        action="store_true",
        help="also the runtime's internals: locks of the schedule, calls and plans",
    )


def run(options: argparse.Namespace) -> int:
    """Prints the report, or writes the page."""
    over = find_ended(options.job) if options.html is None else None
    if over is not None and over.end["report"].get("text"):
        return _show_kept(over)
    return show(resolve_job(options.job), html=options.html, internals=options.internals)


def _show_kept(entry: JobNote) -> int:
    """Prints the kept report of a job whose records are gone."""
    if entry.end["verdict"]:
        print(f"{entry.end['verdict']}\n")
    print(entry.end["report"]["text"], end="")
    return 0


def show(
    given: Sequence[Path | str],
    *,
    html: str | None = None,
    to_errors: bool = False,
    internals: bool = False,
) -> int:
    """Prints the report of a job, or writes it as a page; returns 0.

    Args:
        given: Which job, as for `load_job`.
        html: The file of the page; None: print the report.
        to_errors: Print to standard error.
        internals: Whether to show the runtime's internals.

    Raises:
        RecordError: There is no such job, or a library that the report needs is missing.
        OSError: A file cannot be read or written.
    """
    job = load_job(given)
    report = make_report(job)
    wrong = make_verdict(job)
    try:
        if html is not None:
            Path(html).write_text(
                make_page(report, job, wrong, internals=internals), encoding="utf-8"
            )
            print(html)
        else:
            file = sys.stderr if to_errors else sys.stdout
            print_report(report, file, wrong, internals=internals)
    except ImportError as error:
        raise RecordError(f"{error}: pip install 'tfring[report]'") from error
    return 0
