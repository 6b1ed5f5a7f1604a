"""``tfring report``: where the time of a job goes, and which rank is slow."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tfring.commands.which import add_job, meant
from tfring.recorder.job import load_job
from tfring.recorder.reader import RecordError
from tfring.report.page import page
from tfring.report.summary import make_report
from tfring.report.text import print_report

NAME = "report"
HELP = "show where the time of a job goes and which ranks are slow, as text or as a page"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    add_job(parser)
    parser.add_argument(
        "--html", metavar="FILE", help="write a page with plots, which needs no network"
    )


def run(options: argparse.Namespace) -> int:
    """Prints the report, or writes the page."""
    return show(meant(options.job), html=options.html)


def show(given: Sequence[Path | str], *, html: str | None = None, to_errors: bool = False) -> int:
    """Prints the report of a job, or writes it as a page.

    Args:
        given: Which job, as for `load_job`.
        html: The file of the page; None: it is printed.
        to_errors: Print to standard error.

    Returns:
        0.

    Raises:
        RecordError: There is no such job, or a library that the report needs is missing.
        OSError: A file cannot be read or written.
    """
    job = load_job(given)
    report = make_report(job)
    try:
        if html is not None:
            Path(html).write_text(page(report, job), encoding="utf-8")
            print(html)
        else:
            print_report(report, sys.stderr if to_errors else sys.stdout)
    except ImportError as error:
        raise RecordError(f"{error}: pip install 'tfring[report]'") from error
    return 0
