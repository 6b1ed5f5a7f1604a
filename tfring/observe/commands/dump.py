"""``tfring dump``: saves everything known of a job in one file, for a bug report or for later."""

from __future__ import annotations

import argparse
import io
import tarfile
import textwrap
from pathlib import Path

from tfring.observe.commands.which import FileAnswer, add_job_argument, resolve_job
from tfring.observe.explain.explain import explain_job
from tfring.observe.json_output import add_json_option, print_json
from tfring.observe.live.threads import describe_stacks
from tfring.observe.recorder.files import copy_settled
from tfring.observe.recorder.job import JobRecords, load_job
from tfring.observe.recorder.reader import RecordError
from tfring.observe.recorder.stacks import take_stacks
from tfring.runtime.texts.plain import plain

Answer = FileAnswer


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.description = (
        "Keeps what is known of a job in one file, while it runs or when it is over: what each "
        "rank did last, the explanation, the stacks. Attach it to a bug report."
    )
    parser.epilog = "tfring dump\ntfring dump 6d83ae"
    add_job_argument(parser)
    add_json_option(parser, Answer)
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="where to (default: tfring-JOB.tgz in this folder)"
    )


def run(options: argparse.Namespace) -> int:
    """Writes the file and prints what to do with it."""
    job = load_job(resolve_job(options.job))
    file = write_dump(job, options.output)
    if options.json:
        print_json(Answer(job.job, job.size, len(job.records), str(file)))
        return 0
    print(f"{len(job.records)} of {job.size} ranks: {file}. Attach it to a ticket.")
    print(f"To look into it: tar -xzf {file} && tfring explain {_name(job)}")
    return 0


def write_dump(job: JobRecords, output: str | None = None) -> Path:
    """Writes an archive of the records of a job, its explanation and its stacks; returns the file.

    Args:
        job: The job.
        output: The file; None: one in this folder, named after the job and, if other hosts have
            ranks, after this host.

    Raises:
        RecordError: The file is one of the records.
        OSError: A file cannot be read or written.
    """
    paths = [record.path for record in job.records.values()]
    host = next(iter(job.records.values())).host
    name = _name(job)
    file = Path(output or f"{name}{f'-{host}' if job.missing else ''}.tgz")
    # A rank that runs would die if its record became shorter.
    if file.exists() and any(file.samefile(path) for path in paths):
        raise RecordError(f"{file} is a record of the job: name another file with -o")
    told = textwrap.fill(plain(explain_job(job).text), 100, break_on_hyphens=False)
    stacks = describe_stacks(take_stacks(job.records), whole=True)
    with tarfile.open(file, "w:gz") as archive:
        _add(archive, f"{name}/{host}.txt", f"{told}\n\n{stacks}\n".encode("utf-8", "replace"))
        for path in paths:
            _add(archive, f"{name}/{path.name}", copy_settled(path))
    return file


def _name(job: JobRecords) -> str:
    return f"tfring-{job.job}"


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))
