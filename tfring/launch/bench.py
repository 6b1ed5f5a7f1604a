"""``tfring bench``: starts ranks that measure, or becomes one of them, or compares two results."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Sequence

from tfring.bench.compare import changes, failed, lines, warnings
from tfring.bench.options import add_options as add_measured
from tfring.bench.options import bench_options
from tfring.bench.result import read_result
from tfring.job.environments import find_identity
from tfring.job.environments.identity import IdentityError, Rendezvous
from tfring.launch.job import JobRunner
from tfring.launch.options.option import add_options as add_fields
from tfring.launch.options.option import given, read_options
from tfring.launch.options.resolve import job_options
from tfring.launch.options.run_options import RunOptions
from tfring.launch.output.merger import OutputMerger
from tfring.launch.output.terminal import Terminal
from tfring.observe.explain.launched import RunRecords

LOCAL_RANKS = 2
_PROGRAM = "tfring.bench.worker"
# Options of `tfring run` that say where the ranks are, and what else they get.
_PLACES = ("num_proc", "hosts", "ssh_port", "ssh_identity_file", "bind_to", "x")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.description = (
        "Measures collectives, the gradients of models and training steps, and compares results. "
        "More: tfring help benchmarks."
    )
    parser.epilog = (
        "tfring bench\n"
        "tfring bench -H node1:4,node2:4 --json today.json\n"
        "tfring bench --compare before.json today.json"
    )
    add_fields(parser, RunOptions, only=_PLACES)
    add_measured(parser)
    add = parser.add_argument
    add("--compare", nargs=2, metavar="FILE", help="compare two results; measure nothing")
    add(
        "--fail-above",
        type=float,
        metavar="RATIO",
        help="with --compare: exit with 1 if a result is slower by more than this ratio beyond "
        "measurement noise, for example 1.1",
    )


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns the exit code.

    Raises:
        ValueError: An option is impossible; the message is for the user.
        OSError: A file cannot be read.
    """
    if options.compare:
        return _compare(options.compare, options.fail_above)
    if options.fail_above is not None:
        raise ValueError("--fail-above goes with --compare a.json b.json")
    command = (sys.executable, "-m", _PROGRAM, bench_options(options).to_json())
    asked = read_options(RunOptions, options)
    try:
        here = find_identity(os.environ)
    except IdentityError as error:
        raise ValueError(str(error)) from None
    if here.rendezvous is Rendezvous.NONE:
        return _start(asked, command)
    if named := given(asked, *_PLACES):
        raise ValueError(
            f"{', '.join(named)}: this process is rank {here.rank} of {here.size} already, started "
            f"by {here.source}: leave that out, or run tfring bench by itself"
        )
    sys.stdout.flush()
    os.execv(sys.executable, command)


def _start(asked: RunOptions, command: tuple[str, ...]) -> int:
    """Starts the ranks, and waits until they have measured."""
    nowhere = asked.num_proc is None and not asked.known_hosts
    job = job_options(
        dataclasses.replace(
            asked,
            num_proc=LOCAL_RANKS if nowhere else asked.num_proc,
            x=(("TF_CPP_MIN_LOG_LEVEL", "2"), *asked.x),
            command=command,
        )
    )
    with Terminal() as terminal, RunRecords({**os.environ, **job.environment}) as records:
        return JobRunner(job, OutputMerger(terminal.stdout, terminal.stderr), records).run()


def _compare(paths: Sequence[str], limit: float | None) -> int:
    if limit is not None and limit <= 0:
        raise ValueError(f"--fail-above {limit:g}: it has to be above 0; 1.1 is 10 % slower")
    before, after = map(read_result, paths)
    found = changes(before, after)
    for warning in warnings(before, after):
        print(f"tfring bench: {warning}", file=sys.stderr)
    print("\n".join(lines(found)))
    wrong = failed(found, limit) if limit is not None else []
    for one in wrong:
        print(f"tfring bench: {one.name} is {one.ratio:.2f} times as slow", file=sys.stderr)
    return 1 if wrong else 0
