"""``tfring run``: starts a program on several ranks."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tfring.job.environments.identity import plain_id
from tfring.launch.dry_run import Answer as Answer
from tfring.launch.dry_run import show
from tfring.launch.hosts.errors import NoRanksError, UsageError
from tfring.launch.hosts.names import refuse_unknown
from tfring.launch.hosts.placement import address_of, crowded, is_local
from tfring.launch.job import JobRunner
from tfring.launch.options.config_file import with_file
from tfring.launch.options.job_options import JobOptions
from tfring.launch.options.option import add_options as add_fields
from tfring.launch.options.option import read_options
from tfring.launch.options.resolve import job_options, misplaced, unused_hosts
from tfring.launch.options.run_options import RunOptions
from tfring.launch.options.settings import add_settings
from tfring.launch.output.merger import OutputMerger
from tfring.launch.output.terminal import Terminal
from tfring.observe.explain.launched import RECORD_DIR, RunRecords
from tfring.observe.report import run_lines
from tfring.runtime.settings.environment import Settings, read_settings
from tfring.runtime.ssh import SshOptions
from tfring.runtime.texts.screen import columns
from tfring.runtime.texts.words import counted

if TYPE_CHECKING:
    from tfring.launch.elastic.elastic_job import ElasticJobRunner
    from tfring.launch.elastic.orders import Head, Orders


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.usage = "tfring run [-np N] [-H HOST:SLOTS,...] [options] PROGRAM ..."
    parser.description = (
        "Starts a program on several ranks, here or on other hosts, prints what they print, and "
        "ends all when one fails. Lines have the rank in front as soon as a second rank writes. "
        "Words behind the program are the program's. Other hosts need the same Python and tfring "
        "at the same path. More: tfring help launcher."
    )
    parser.epilog = (
        "tfring run -np 4 python train.py --epochs 3\n"
        "tfring run -H node1:4,node2:4 python train.py\n"
        "tfring run -np 4 --report python train.py\n"
        "tfring run -np 8 --min-np 4 --host-discovery-script ./hosts.sh python train.py"
    )
    add_fields(parser, RunOptions)
    add_settings(parser)


def run(parsed: argparse.Namespace) -> int:
    """Runs the job; returns its exit code. UsageError: the options are wrong."""
    options = read_options(RunOptions, with_file(parsed))
    if options.check_build:
        from tfring.launch import doctor

        return doctor.main()
    if options.json and not options.dry_run:
        raise UsageError(
            "--json goes with --dry-run. --exit-report FILE and --events FILE write as JSON how a "
            "job runs and ends."
        )
    behind = misplaced(parsed.words, options)
    if behind:
        print(f"tfring run: {behind}", file=sys.stderr)
    try:
        if options.dry_run:
            return show(job_options(options), as_json=options.json)
        return _run(options)
    except NoRanksError:
        if behind:
            return 2
        raise


def _run(options: RunOptions) -> int:
    """Runs the job that the options describe; returns its exit code."""
    job = job_options(options)
    more = {**job.environment, **_screen(job)}
    job = dataclasses.replace(job, environment=more)
    variables = {**os.environ, **job.environment}
    hosts = dict.fromkeys(slot.host for slot in job.slots)
    hosts |= dict.fromkeys(host for host, _ in (job.elastic.hosts if job.elastic else ()))
    elsewhere = not all(is_local(host) for host in hosts)
    if options.report and elsewhere and not variables.get(RECORD_DIR):
        raise UsageError(f"--report with other hosts needs {RECORD_DIR}, a folder of all hosts")
    if job.elastic is None and isinstance(job.shell, SshOptions):
        refuse_unknown(hosts)
    settings = read_settings(variables)
    timeline = None if settings.timeline is None else Path(settings.timeline).absolute()
    with Terminal() as terminal, RunRecords(variables) as records:
        merger = OutputMerger(
            terminal.stdout,
            terminal.stderr,
            timestamps=options.prefix_output_with_timestamp,
            tensorflow_info=options.show_tensorflow_info,
            merge_lines=not options.no_merge_lines,
            ranks=options.print_ranks,
        )
        if hint := unused_hosts(options, os.environ):
            merger.note(hint)
        if timeline is not None:
            _timeline(timeline, over=False)
        runner = _runner(job, merger, records)
        began = time.monotonic()
        if speaks := run_lines.wanted(settings.runtime):
            merger.note(_first_line(job, settings, alone=not elsewhere))
        if hint := crowded(job.slots):
            merger.note(hint)
        code = runner.run()
        if code == 0 and runner.stopped_by is None:
            if settings.record and (hint := _nobody_joined(job, options.horovod, records)):
                merger.note(hint)
            elif speaks:
                took = time.monotonic() - began
                merger.note(run_lines.last_line(took, records.report))
        terminal.close()
        if timeline is not None:
            # Of ranks of this host that were killed before they could write it.
            _timeline(timeline, over=True)
        if options.report:
            _print_report(records)
    return code


def _screen(job: JobOptions) -> dict[str, str]:
    """Returns how wide ranks may write, which have no terminal: as this one, less their names."""
    width = columns(sys.stdout)
    if width is None or "COLUMNS" in os.environ:
        return {}
    return {"COLUMNS": str(width - len(f"{max(0, job.size - 1)}| "))}


def _first_line(job: JobOptions, settings: Settings, *, alone: bool) -> str:
    """Returns who trains where; `alone` says that no other host is known."""
    hosts = list(dict.fromkeys(slot.host for slot in job.slots))
    count = job.size if job.elastic is None else job.elastic.min_np
    ranks = counted(count, "rank")
    if job.share is not None:
        ranks = f"{len(job.slots)} of {ranks}"
    if job.elastic is not None:  # other launchers know the hosts of theirs
        hosts = [host for host, _ in job.elastic.hosts] if job.node is None else []
        ranks = f"elastic, {ranks} or more"
    others = job.share is not None
    devices = run_lines.own_devices() if alone and hosts else ""
    return run_lines.first_line(
        plain_id(job.job_id),
        ranks,
        [address_of(host) for host in hosts],
        devices=devices,
        transport=run_lines.transport(len(hosts) + others, job.size, devices, settings.runtime),
    )


def _runner(
    job: JobOptions, merger: OutputMerger, records: RunRecords
) -> JobRunner | ElasticJobRunner:
    elastic, node = job.elastic, job.node
    if elastic is None:
        return JobRunner(job, merger, records)
    from tfring.launch.elastic.coordinator import LocalHead
    from tfring.launch.elastic.elastic_job import ElasticJobRunner
    from tfring.launch.elastic.nodes import NodeHead

    def head(orders: Orders) -> Head:
        if node is None:
            return LocalHead(job, elastic, orders)
        return NodeHead(node, elastic, job.start_timeout, orders)

    return ElasticJobRunner(job, head, elastic, merger, records)


def _nobody_joined(job: JobOptions, shimmed: bool, records: RunRecords) -> str:
    """Returns what to say of a job that ended well and that no rank has joined; "" of any other.

    `shimmed` says whether --horovod was given.
    """
    here = sum(is_local(slot.host) for slot in job.slots)
    if len(job.slots) < 2 or not here or not records.nobody_joined():
        return ""
    where = "" if here == len(job.slots) else " on this host"
    horovod = "" if shimmed else "A script for Horovod needs --horovod. "
    return (
        f"tfring run: no process{where} called tfring.init(), so the {len(job.slots)} processes "
        f"were programs of their own and not ranks of one job. {horovod}A program that looks for "
        "mpirun's variables or uses mpi4py needs mpirun; see `tfring help migration`."
    )


def _timeline(path: Path, *, over: bool) -> None:
    """Removes an old timeline before the job, or writes that of the job."""
    from tfring.observe.timeline import merge

    try:
        if over:
            merge.finish(path)
        else:
            merge.clear(path)
    except Exception as error:  # the exit code is that of the job
        print(f"tfring run: the timeline could not be written: {error}", file=sys.stderr)


def _print_report(records: RunRecords) -> None:
    """Prints where the time of the job went."""
    from tfring.observe.commands import report

    try:
        paths = [record.path for record in records.job.records.values()]
        report.show(paths, sys.stderr)
    except Exception as error:  # the exit code is that of the job
        print(f"tfring run: no report: {error}", file=sys.stderr)
