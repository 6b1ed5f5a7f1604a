"""``tfring dump``: keeps the records of a job as they are now."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from tfring.recorder.job import JobRecords, load_job
from tfring.recorder.stacks import stacks_file

NAME = "dump"
HELP = "copy the records of a job on this host to a folder, while it runs or when it is over"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    add_job(parser)
    parser.add_argument(
        "-o", "--output", metavar="FOLDER", help="where to (default: tfring-JOB in this folder)"
    )


def add_job(parser: argparse.ArgumentParser) -> None:
    """Adds the argument that says which job is meant."""
    parser.add_argument(
        "job",
        nargs="*",
        metavar="JOB|FILE|FOLDER",
        help="a job's number or its beginning, or its records (default: the newest job here)",
    )


def run(options: argparse.Namespace) -> int:
    """Copies the files and prints where to."""
    print(copy_records(load_job(options.job), options.output))
    return 0


def copy_records(job: JobRecords, output: str | None) -> str:
    """Copies the records of a job, and the stacks that its ranks have written.

    Args:
        job: The job.
        output: The folder; None: one in this folder that is named after the job.

    Returns:
        How many ranks, and where, for the user.

    Raises:
        OSError: A file cannot be read or written.
    """
    folder = Path(output or f"tfring-{job.job}")
    folder.mkdir(parents=True, exist_ok=True)
    for record in job.records.values():
        shutil.copyfile(record.path, folder / record.path.name)
        stacks = stacks_file(record.path)
        if stacks.exists() and stacks.stat().st_size:
            shutil.copyfile(stacks, folder / stacks.name)
    return f"{len(job.records)} of {job.size} ranks: {folder}"
