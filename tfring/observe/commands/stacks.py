"""``tfring stacks``: where each rank of a job is."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from tfring.observe.commands.which import add_job_argument, resolve_job
from tfring.observe.live.hosts import OtherHosts, add_host_options, name_job
from tfring.observe.live.threads import describe_stacks
from tfring.observe.recorder.job import JobRecords, load_job
from tfring.observe.recorder.reader import RecordError
from tfring.observe.recorder.stacks import take_stacks

_ANSWER_SECONDS = 60.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.description = "Prints the stacks of all threads of a job's ranks, also while they hang."
    parser.epilog = "tfring stacks\ntfring stacks 6d83ae --all"
    add_job_argument(parser)
    add = parser.add_argument
    add(
        "--all",
        action="store_true",
        help="also frames of TensorFlow, Keras and tfring, and tfring's threads",
    )
    add("--json", action="store_true", help="print one JSON object: the stacks by rank")
    add(
        "--timeout",
        type=float,
        default=2.0,
        metavar="SECONDS",
        help="wait this long for ranks (default %(default)g)",
    )
    add_host_options(parser)


def run(options: argparse.Namespace) -> int:
    """Prints the stacks.

    Raises:
        RecordError: There is no such job, or the hosts show different ones.
        ValueError: An impossible --timeout.
    """
    if not 0 < options.timeout <= 3600:
        raise ValueError(f"--timeout {options.timeout}: use more than 0 and at most 3600 seconds")
    given = resolve_job(options.job, elsewhere=bool(options.host))
    try:
        job = load_job(given) if given else None
    except RecordError:
        if not options.host:
            raise
        job = None
    words = ["stacks", *name_job(options.job, job.job if job else ""), "--json"]
    words += ["--timeout", str(options.timeout)]
    with OtherHosts(options, words) as others:
        answers = [_here(job, options)] if job is not None else []
        others.wait(_ANSWER_SECONDS)
        answers += others.newest()
        for trouble in others.troubles():
            print(f"tfring stacks: {trouble}", file=sys.stderr)
    names = sorted({str(answer["job"]) for answer in answers})
    if len(names) != 1:
        raise RecordError(f"the hosts show different jobs: {', '.join(names) or 'none'}; name one")
    found = {int(r): str(text) for answer in answers for r, text in answer["stacks"].items()}
    size = max(int(answer["size"]) for answer in answers)
    if options.json:
        print(json.dumps({"job": names[0], "size": size, "stacks": found}))
        return 0
    for rank in set(range(size)) - found.keys():
        found[rank] = "no stacks: it has no record here; --host names other hosts"
    print(describe_stacks(found, whole=options.all))
    return 0


def _here(job: JobRecords, options: argparse.Namespace) -> dict[str, Any]:
    """Returns what `tfring stacks --json` prints for this host's ranks."""
    stacks = take_stacks(job.records, options.timeout)
    return {"job": job.job, "size": job.size, "stacks": stacks}
