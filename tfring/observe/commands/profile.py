"""``tfring profile``: which lines of the program take the time of each rank."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tfring.observe.commands.which import add_job_argument, resolve_job
from tfring.observe.json_output import add_json_option, print_json
from tfring.observe.profile import (
    Shares,
    describe_difference,
    find_shares,
    make_document,
    sample,
)
from tfring.observe.recorder.job import load_job
from tfring.observe.recorder.places import short
from tfring.observe.recorder.reader import RecordError
from tfring.runtime.texts.plain import plain

_LINES = 5
_LEAST = 0.005  # of the time; less is 0 %


@dataclass(frozen=True)
class Answer:
    """Which lines of the program take the time of each rank.

    Attributes:
        job: Its id.
        size: The number of its ranks.
        file: The flame graph, for https://www.speedscope.app.
        difference: Where some ranks spend much more time than the others, in a sentence; "": only
            one rank was sampled.
        lines: By rank: lines, and their shares of its time, the largest first.
        failures: By rank: why it could not be sampled.
    """

    job: str
    size: int
    file: str
    difference: str
    lines: dict[str, dict[str, float]]
    failures: dict[str, str]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.description = (
        "Samples all ranks of a job for some seconds. Prints the lines of the program that take "
        "the time of each rank; writes a flame graph for speedscope.app. More: tfring help live."
    )
    parser.epilog = "tfring profile\ntfring profile 6d83ae --seconds 20 -o slow.json"
    add_job_argument(parser)
    add_json_option(parser, Answer)
    add = parser.add_argument
    add("--seconds", type=float, default=5.0, metavar="S", help="for how long (default 5)")
    add("--rate", type=float, default=50.0, metavar="N", help="samples per second (default 50)")
    add("-o", "--output", metavar="FILE", help="where to (profile-JOB.speedscope.json here)")


def run(options: argparse.Namespace) -> int:
    """Writes the flame graph and prints the lines.

    Raises:
        RecordError: There is no such job, or no rank of it can be sampled here.
        ValueError: An impossible option.
        OSError: The file cannot be written.
    """
    for name, most in (("seconds", 3600), ("rate", 1000)):
        if not 1 <= getattr(options, name) <= most:
            raise ValueError(f"--{name} {getattr(options, name)}: use 1 to {most}")
    job = load_job(resolve_job(options.job))
    file = Path(options.output or f"profile-{job.job}.speedscope.json")
    profiles = sample(job.records, options.seconds, options.rate)
    found = {rank: find_shares(one) for rank, one in profiles.items() if one.threads}
    failures = {rank: one.failure for rank, one in profiles.items() if not one.threads}
    if not found:
        raise RecordError(f"no rank can be sampled: {next(iter(failures.values()))}")
    name = f"job {short(job.job)}"
    file.write_text(
        json.dumps(make_document(name, profiles), separators=(",", ":")), encoding="utf-8"
    )
    difference = describe_difference(found) if len(found) > 1 else ""
    if options.json:
        lines = {str(rank): _shares(own) for rank, own in found.items()}
        failed = {str(rank): why for rank, why in failures.items()}
        print_json(Answer(job.job, job.size, str(file), difference, lines, failed))
        return 0
    print("\n".join(_text(found, failures, difference)))
    if not all(profiles[rank].spied for rank in found):
        print(
            "Ranks sampled themselves, because py-spy is not installed or may not trace them. For "
            "more exact lines `pip install py-spy`, and give it CAP_SYS_PTRACE in a container."
        )
    print(f"{len(found)} of {job.size} ranks: {file}. Open it at https://www.speedscope.app")
    return 0


def _shares(own: Shares) -> dict[str, float]:
    """Returns the lines that take most of the time, with their shares."""
    most = itertools.islice(own.items(), _LINES)
    return {plain(line.text()): share for line, share in most if share >= _LEAST}


def _text(found: Mapping[int, Shares], failures: Mapping[int, str], difference: str) -> list[str]:
    lines = [plain(difference), ""] if difference else []
    for rank, own in found.items():
        lines.append(f"Rank {rank}:")
        lines += [f"  {100 * share:3.0f} %  {line}" for line, share in _shares(own).items()]
    return [*lines, *(f"Rank {rank}: {why}" for rank, why in failures.items())]
