"""Finds the job that a command is about."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tfring.observe.recorder.catalog import JobNote
from tfring.observe.recorder.choice import (
    KnownJob,
    NoJobError,
    choose_job,
    find_job,
    find_records,
    known_jobs,
)
from tfring.observe.recorder.places import short
from tfring.runtime.texts.plain import plain
from tfring.runtime.texts.times import time_text


@dataclass(frozen=True)
class FileAnswer:
    """The file that was written.

    Attributes:
        job: The job's id.
        size: The number of its ranks.
        ranks: How many of them the file has; the others have no record here.
        file: The file.
    """

    job: str
    size: int
    ranks: int
    file: str


def add_job_argument(parser: argparse.ArgumentParser) -> None:
    """Adds the argument that names the job."""
    parser.add_argument(
        "job",
        nargs="*",
        metavar="JOB|FILE|FOLDER",
        help="a job's id or its beginning, or its records (default: the job that runs; of several "
        "that of this folder or terminal; see tfring jobs)",
    )


def resolve_job(given: Sequence[str], *, elsewhere: bool = False) -> list[str]:
    """Returns what names the job, for `load_job`; names the chosen job on standard error.

    Args:
        given: What the user gave.
        elsewhere: Whether other hosts may have the job; then [] if there is none here.

    Raises:
        RecordError: No job is known here, or several run and none of them is meant.
    """
    if given:
        return list(given)
    try:
        job = choose_job()
    except NoJobError:
        if elsewhere:
            return []
        raise
    print(_which(job), file=sys.stderr)
    return [str(find_records(job)[0].parent)]


def find_ended(given: Sequence[str]) -> JobNote | None:
    """Returns the note of a job that has ended and whose records are gone; None for any other job.

    Raises:
        RecordError: As for `resolve_job`.
    """
    if len(given) > 1 or any(os.path.exists(one) for one in given):
        return None
    job = find_job(given[0]) if given else choose_job()
    return job.entry if job.entry is not None and job.entry.end and not job.generations else None


def _which(job: KnownJob) -> str:
    text = f"job {short(job.job)}: {job.program}, in {plain(job.folder) or '?'}"
    if not job.runs:
        began = time_text(time.time() - job.began)
        return f"{text}; it is over, it began {began} ago, and no job runs"
    others = sum(one.runs for one in known_jobs()) - 1
    if others <= 0:
        return text
    return f"{text}; {others} other job{'s run' if others > 1 else ' runs'}: tfring jobs"
