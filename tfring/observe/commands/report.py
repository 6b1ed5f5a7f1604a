"""``tfring report``: where the time of a job goes, and which rank is slow."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from tfring.observe.commands.which import add_job_argument, find_ended, resolve_job
from tfring.observe.explain.explain import make_verdict
from tfring.observe.json_output import add_json_option, print_json
from tfring.observe.recorder.job import load_job
from tfring.observe.recorder.reader import RecordError
from tfring.observe.report.answer import Answer as Answer
from tfring.observe.report.answer import make_answer, parse_answer
from tfring.observe.report.summary import make_report
from tfring.observe.report.text import print_report


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.description = (
        "Shows where the time of a job goes: own work, input, callbacks, exchange, waiting for "
        "other ranks. It knows a job for a day after its end."
    )
    parser.epilog = "tfring report\ntfring report 6d83ae"
    add_job_argument(parser)
    add_json_option(parser, Answer)


def run(options: argparse.Namespace) -> int:
    """Prints the report; returns 0."""
    if options.json:
        print_json(answer(options.job))
        return 0
    over = find_ended(options.job)
    if over is not None and (kept := over.end["report"].get("text")):
        if over.end["verdict"]:
            print(f"{over.end['verdict']}\n")
        print(kept, end="")
        return 0
    show(resolve_job(options.job), sys.stdout)
    return 0


def answer(given: Sequence[str]) -> Answer:
    """Returns where the time of a job goes; raises RecordError if there is no such job."""
    over = find_ended(given)
    if over is not None and (kept := over.end["report"].get("answer")):
        return parse_answer({**kept, "verdict": over.end["verdict"]})
    job = load_job(resolve_job(given))
    return make_answer(make_report(job), make_verdict(job))


def show(given: Sequence[Path | str], file: TextIO) -> None:
    """Prints the report of a job.

    Args:
        given: Which job, as for `load_job`.
        file: Where to print.

    Raises:
        RecordError: There is no such job, or a library that the report needs is missing.
        OSError: A file cannot be read.
    """
    job = load_job(given)
    try:
        print_report(make_report(job), file, make_verdict(job))
    except ImportError as error:
        raise RecordError(f"{error}: pip install 'tfring[report]'") from error
