"""``tfring timeline``: what a job did when, as a file for Perfetto."""

from __future__ import annotations

import argparse

from tfring.observe.commands.which import FileAnswer, add_job_argument, resolve_job
from tfring.observe.json_output import add_json_option, print_json
from tfring.observe.timeline.draw import draw
from tfring.observe.timeline.spool import load_timeline

Answer = FileAnswer


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.description = "Writes what a job did when. Open the file at https://ui.perfetto.dev."
    parser.epilog = "tfring timeline\ntfring timeline 6d83ae -o timeline.json.gz"
    add_job_argument(parser)
    add_json_option(parser, Answer)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="where to (default: timeline-JOB.json here); compressed if it ends in .gz",
    )


def run(options: argparse.Namespace) -> int:
    """Writes the file and prints its name."""
    found = load_timeline(resolve_job(options.job))
    job = found.job
    path = options.output or f"timeline-{job.job}.json"
    draw(job, found.phases).write(path)
    if options.json:
        print_json(Answer(job.job, job.size, len(job.records), path))
        return 0
    calls = sum(len(record.calls) for record in job.records.values())
    print(f"{len(job.records)} of {job.size} ranks, {calls} calls: {path}")
    print("Open https://ui.perfetto.dev and drop the file there: it stays in your browser.")
    return 0
