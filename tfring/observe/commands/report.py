"""``tfring report``: where the time of a job goes, and which rank is slow."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from tfring.observe.commands.which import add_job_argument, find_ended, resolve_job
from tfring.observe.explain.explain import make_verdict
from tfring.observe.json_output import add_json_option, print_json
from tfring.observe.recorder.catalog import JobNote
from tfring.observe.recorder.job import load_job
from tfring.observe.recorder.reader import RecordError
from tfring.observe.report.summary import RankSummary, Report, make_report
from tfring.observe.report.text import print_report, write_sentences


@dataclass(frozen=True)
class Answer:
    """Where the time of a job goes.

    If its records are gone, because it ended well, there are only `text`, `job`, `size` and
    `verdict`; the text has the table of ranks, too.

    Attributes:
        job: Its id.
        size: The number of its ranks.
        verdict: What is wrong, in a paragraph; "": nothing.
        steps: How many training steps the records have; 0: none, and no times.
        own_work: Share of the time in which ranks did their own work, with input and callbacks.
        waiting: Share of the time in which ranks waited for others. The rest of 1 is communication.
        slowest: The rank for which the others waited longest. Small shares mean nothing: one of
            them is always the last.
        equal: Whether all ranks had equal weights at the end of the last `fit`; False: except for
            rounding; None: unknown.
        ranks: Each rank.
        text: The sentences that the command prints without --json.
    """

    job: str
    size: int
    verdict: str
    steps: int
    own_work: float | None
    waiting: float | None
    slowest: int | None
    equal: bool | None
    ranks: list[RankSummary]
    text: str


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
    if over is not None and over.end["report"].get("text"):
        return _kept(over)
    job = load_job(resolve_job(given))
    return _of(make_report(job), make_verdict(job))


def _of(report: Report, verdict: str) -> Answer:
    steps, slowest = report.steps, report.slowest
    return Answer(
        job=report.job,
        size=report.size,
        verdict=verdict,
        steps=len(steps.number),
        own_work=steps.efficiency,
        waiting=float(steps.waiting.sum() / steps.total.sum()) if len(steps.number) else None,
        slowest=None if slowest is None else slowest.rank,
        equal=report.equal,
        ranks=list(report.ranks),
        text="\n".join(write_sentences(report)),
    )


def _kept(over: JobNote) -> Answer:
    """Returns what was kept of the report of a job whose records are gone."""
    kept: Mapping[str, Any] = over.end["report"]
    return Answer(
        job=over.job,
        size=kept["size"],
        verdict=over.end["verdict"],
        steps=0,
        own_work=None,
        waiting=None,
        slowest=None,
        equal=None,
        ranks=[],
        text=kept["text"],
    )


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
