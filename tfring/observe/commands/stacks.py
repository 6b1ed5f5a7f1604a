"""``tfring stacks``: where each rank of a job is."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from tfring.observe.commands.which import add_job_argument, resolve_job
from tfring.observe.json_output import add_json_option, as_object, print_json
from tfring.observe.live.hosts import OtherHosts, add_host_options, name_job
from tfring.observe.live.threads import describe_stacks
from tfring.observe.recorder.job import JobRecords, load_job
from tfring.observe.recorder.reader import RecordError
from tfring.observe.recorder.stacks import take_stacks

_ANSWER_SECONDS = 60.0
_STACKS_SECONDS = 2.0


@dataclass(frozen=True)
class Answer:
    """Where the threads of each rank are.

    Attributes:
        job: Its id.
        size: The number of its ranks.
        stacks: By rank: its threads, the main one first, the innermost call first. For a rank that
            cannot be asked, a sentence that begins with "no stacks: ".
    """

    job: str
    size: int
    stacks: dict[str, str]


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
    add_json_option(parser, Answer)
    add(
        "--timeout",
        type=float,
        default=_STACKS_SECONDS,
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
        answers = [as_object(_of(job, options.timeout))] if job is not None else []
        others.wait(_ANSWER_SECONDS)
        answers += others.newest()
        for trouble in others.troubles():
            print(f"tfring stacks: {trouble}", file=sys.stderr)
    names = sorted({str(one["job"]) for one in answers})
    if len(names) != 1:
        raise RecordError(f"the hosts show different jobs: {', '.join(names) or 'none'}; name one")
    found = {int(r): str(text) for one in answers for r, text in one["stacks"].items()}
    size = max(int(one["size"]) for one in answers)
    if options.json:
        print_json(Answer(names[0], size, {str(rank): text for rank, text in found.items()}))
        return 0
    for rank in set(range(size)) - found.keys():
        found[rank] = "no stacks: it has no record here; --host names other hosts"
    print(describe_stacks(found, whole=options.all))
    return 0


def answer(given: Sequence[str]) -> Answer:
    """Returns the stacks of the ranks of this host; raises RecordError if there is no such job."""
    return _of(load_job(resolve_job(given)), _STACKS_SECONDS)


def _of(job: JobRecords, timeout: float) -> Answer:
    stacks = take_stacks(job.records, timeout)
    return Answer(job.job, job.size, {str(rank): text for rank, text in stacks.items()})
