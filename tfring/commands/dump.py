"""``tfring dump``: keeps the records of a job as they are now."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from tfring.commands.torch_format import write_torch_traces
from tfring.commands.which import add_job, meant
from tfring.recorder.files import settled_copy
from tfring.recorder.job import JobRecords, load_job
from tfring.recorder.reader import RecordError
from tfring.recorder.stacks import stacks_file


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.description = (
        "Copies the records of a job's ranks into a folder: what each did last, where its time "
        "went, its stacks. Attach it to a bug report; all commands read it."
    )
    parser.epilog = "tfring dump\ntfring dump 6d83ae"
    add_job(parser)
    parser.add_argument(
        "-o", "--output", metavar="FOLDER", help="where to (default: tfring-JOB in this folder)"
    )
    parser.add_argument(
        "--torch", action="store_true", help="write what PyTorch's analyser torchfrtrace reads"
    )


def run(options: argparse.Namespace) -> int:
    """Copies the files and prints where to."""
    job = load_job(meant(options.job))
    if options.torch:
        folder = Path(options.output or f"tfring-{job.job}")
        print(f"{len(write_torch_traces(job, folder))} of {job.size} ranks: {folder}")
    else:
        print(copy_records(job, options.output))
    return 0


def copy_records(job: JobRecords, output: str | None) -> str:
    """Copies the records of a job, and the stacks that its ranks have written.

    Args:
        job: The job.
        output: The folder; None: one in this folder that is named after the job.

    Returns:
        How many ranks, and where, for the user.

    Raises:
        RecordError: The folder is the one where the records are.
        OSError: A file cannot be read or written.
    """
    folder = Path(output or f"tfring-{job.job}")
    folder.mkdir(parents=True, exist_ok=True)
    # A rank that runs would die if its file became shorter under it.
    if any(folder.samefile(record.path.parent) for record in job.records.values()):
        raise RecordError(f"the records are in {folder} already: name another folder with -o")
    for record in job.records.values():
        copy = folder / record.path.name
        copy.unlink(missing_ok=True)  # a link to the record, or one that somebody reads just now
        copy.write_bytes(settled_copy(record.path))
        stacks = stacks_file(record.path)
        if stacks.exists() and stacks.stat().st_size:
            shutil.copyfile(stacks, folder / stacks.name)
    return f"{len(job.records)} of {job.size} ranks: {folder}"
