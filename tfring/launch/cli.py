"""The ``tfring`` command."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tfring.commands import ALL, report
from tfring.comparison.runs import compare_runs
from tfring.explain.launched import RECORD_DIR, RunRecords
from tfring.launch import bench, doctor
from tfring.launch.dry_run import show
from tfring.launch.elastic.dry_run import show_elastic
from tfring.launch.elastic.elastic_job import ElasticJobRunner
from tfring.launch.elastic.plan import ElasticPlan, elastic_plan
from tfring.launch.hosts.errors import UsageError
from tfring.launch.hosts.placement import is_local, parse_hosts
from tfring.launch.job import JobRunner
from tfring.launch.kubernetes.manifest import manifest
from tfring.launch.kubernetes.options import request_of
from tfring.launch.options.arguments import add_options
from tfring.launch.options.config_file import words_of_file
from tfring.launch.options.from_arguments import job_options, printed_ranks, unused_hosts
from tfring.launch.options.job_options import JobOptions
from tfring.launch.output.merger import OutputMerger
from tfring.launch.output.terminal import Terminal
from tfring.settings.environment import read_settings
from tfring.settings.setting import SettingError
from tfring.timeline import merge
from tfring.version import __version__


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="tfring", description="Distributed training for TensorFlow and Keras."
    )
    parser.add_argument("-v", "--version", action="version", version=f"tfring {__version__}")
    commands = parser.add_subparsers(dest="action", metavar="COMMAND")
    run = commands.add_parser(
        "run",
        allow_abbrev=False,
        help="start a program on several ranks",
        description="Starts a program on several ranks, here or on other hosts through ssh. Prints "
        "their output with the prefix [rank]<stdout>: or [rank]<stderr>:, a line that several "
        "ranks write at the same time once, as [0-3,5]<stdout>:, and ends all when one fails. "
        "Their standard input is empty. Other hosts need the same Python and tfring at the same "
        "path. The exit code is that of the rank that failed first. More: docs/launcher.md.",
        usage="tfring run [-np N] [-H host:slots,...] [options] command ...",
    )
    add_options(run)
    run.set_defaults(parser=run)
    checked = commands.add_parser("doctor", help="show what is installed and what is wrong")
    checked.add_argument(
        "-H",
        dest="doctor_hosts",
        metavar="HOST:SLOTS,...",
        help="also what allreduces between these hosts are expected to take; none is asked",
    )
    bench.add_bench(commands.add_parser(bench.NAME, help=bench.HELP))
    for command in ALL:
        command.add_options(commands.add_parser(command.NAME, help=command.HELP))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        argv: The arguments without the program's name; None takes the process's.

    Returns:
        The exit code.
    """
    parser = make_parser()
    options = parser.parse_args(argv)
    if options.action == "doctor":
        return _guarded("doctor", _doctor, options)
    if options.action == "run" and options.check_build:
        return doctor.main()
    command = next((c for c in ALL if options.action == c.NAME), None)
    if command is not None:
        return _guarded(command.NAME, command.run, options)
    if options.action == bench.NAME:
        return _guarded(bench.NAME, bench.run, options)
    if options.action != "run":
        parser.print_help()
        return 2
    try:
        if options.config_file:
            given = list(sys.argv[1:] if argv is None else argv)
            words = words_of_file(Path(options.config_file), options.parser, given)
            options = parser.parse_args([*given[:1], *words, *given[1:]])
        if (request := request_of(options)) is not None:
            print(manifest(request, sys.argv[1:] if argv is None else argv), end="")
            return 0
        if options.dry_run:
            job, plan = _job_and_plan(options)
            return show(job) if plan is None else show_elastic(job, plan)
        return _compare(options) if options.compare else _run(options)
    except UsageError as error:
        print(f"tfring run: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output is gone; the agents end the ranks when this process ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141


def _doctor(options: argparse.Namespace) -> int:
    return doctor.main(parse_hosts(options.doctor_hosts) if options.doctor_hosts else ())


def _guarded(
    name: str, run: Callable[[argparse.Namespace], int], options: argparse.Namespace
) -> int:
    """Runs a command other than `tfring run`; returns its exit code."""
    try:
        return run(options)
    except BrokenPipeError:  # the reader of our output is gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
    except (OSError, ValueError) as error:
        print(f"tfring {name}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _run(options: argparse.Namespace, **environment: str) -> int:
    """Runs the job that the options describe, with more variables; returns its exit code."""
    job, plan = _job_and_plan(options)
    elastic = None if plan is None else plan.elastic
    job = dataclasses.replace(job, environment={**job.environment, **environment})
    variables = {**os.environ, **job.environment}
    hosts = {slot.host for slot in job.slots} | {
        host for host, _ in (elastic.hosts if elastic else ())
    }
    elsewhere = not all(is_local(host) for host in hosts)
    if options.report and elsewhere and not variables.get(RECORD_DIR):
        raise UsageError(f"--report with other hosts needs {RECORD_DIR}, a folder of all hosts")
    timeline = _timeline_of(variables)
    shown = printed_ranks(options)
    with Terminal() as terminal, RunRecords(variables) as records:
        merger = OutputMerger(
            terminal.stdout,
            terminal.stderr,
            timestamps=options.prefix_output_with_timestamp,
            info_ranks=None if options.show_tensorflow_info else (0,),
            merge_lines=not options.no_merge_lines,
            ranks=shown,
        )
        if hint := unused_hosts(options, os.environ):
            merger.note(hint)
        if timeline is not None:
            _timeline(merge.clear, timeline)
        runner = _runner(job, plan, merger, records)
        code = runner.run()
        ended_well = code == 0 and plan is None and runner.stopped_by is None
        if ended_well and (hint := _nobody_joined(job, options.horovod, variables, records)):
            merger.note(hint)
        terminal.close()
        if timeline is not None:
            # Of ranks of this host that were killed before they could write it.
            _timeline(merge.finish, timeline)
        if options.report:
            _print_report(records)
    return code


def _job_and_plan(options: argparse.Namespace) -> tuple[JobOptions, ElasticPlan | None]:
    """Returns the job that the options describe, and how its ranks change if they do."""
    plan = elastic_plan(options)
    job = job_options(options, elastic=plan is not None)
    return (job, None) if plan is None else (plan.prepared(job), plan)


def _runner(
    job: JobOptions, plan: ElasticPlan | None, merger: OutputMerger, records: RunRecords
) -> JobRunner | ElasticJobRunner:
    if plan is None:
        return JobRunner(job, merger, records)
    head = functools.partial(plan.head, job)
    return ElasticJobRunner(job, head, plan.elastic, merger, records)


def _nobody_joined(
    job: JobOptions, shimmed: bool, variables: Mapping[str, str], records: RunRecords
) -> str:
    """Returns what to say of a job that ended well and that no rank has joined; "" of any other.

    Args:
        job: The job.
        shimmed: Whether --horovod was given.
        variables: The environment of the ranks.
        records: Where ranks of this host leave a record when they join.
    """
    here = sum(is_local(slot.host) for slot in job.slots)
    with contextlib.suppress(SettingError):
        if not read_settings(variables).record:
            return ""
    if len(job.slots) < 2 or not here or not records.nobody_joined():
        return ""
    where = "" if here == len(job.slots) else " on this host"
    horovod = "" if shimmed else "A script for Horovod needs --horovod. "
    return (
        f"tfring run: no process{where} called tfring.init(), so the {len(job.slots)} processes "
        f"were programs of their own and not ranks of one job. {horovod}A program that looks for "
        "mpirun's variables or uses mpi4py needs mpirun; see docs/migration.md."
    )


def _timeline_of(variables: Mapping[str, str]) -> Path | None:
    """Returns where the ranks write a timeline; None: nowhere, or they refuse their settings."""
    with contextlib.suppress(SettingError):
        timeline = read_settings(variables).timeline
        return None if timeline is None else Path(timeline).absolute()
    return None


def _timeline(do: Callable[[Path], object], path: Path) -> None:
    try:
        do(path)
    except Exception as error:  # the exit code is that of the job
        print(f"tfring run: the timeline could not be written: {error}", file=sys.stderr)


def _print_report(records: RunRecords) -> None:
    """Prints where the time of the job went."""
    try:
        paths = [record.path for record in records.job().records.values()]
        report.show(paths, to_errors=True)
    except Exception as error:  # the exit code is that of the job
        print(f"tfring run: no report: {error}", file=sys.stderr)


def _compare(options: argparse.Namespace) -> int:
    """Runs the program with both numbers of ranks and compares; returns 1 if they differ."""
    counts = options.compare.split(",")
    if len(counts) != 2 or not all(c.isdecimal() and int(c) > 0 for c in counts):
        raise UsageError(f"--compare {options.compare}: it has to be two numbers of ranks, as 1,2")
    if options.compare_steps < 1:
        raise UsageError(f"--compare-steps {options.compare_steps}: it has to be above 0")
    with tempfile.TemporaryDirectory(prefix="tfring-compare-") as name:
        folders = [Path(name) / f"{i}-{count}" for i, count in enumerate(counts)]
        for count, folder in zip(counts, folders, strict=True):
            options.num_proc = int(count)
            steps = str(options.compare_steps)
            code = _run(options, TFRING_COMPARE_FOLDER=str(folder), TFRING_COMPARE_STEPS=steps)
            if code != 0:
                return code
        one, other = (f"{c} rank{'' if c == '1' else 's'}" for c in counts)
        outcome = compare_runs(folders[0], folders[1], (one, other))
    print(f"tfring run: {one} and {other}: {outcome.text}")
    return 0 if outcome.equal else 1
