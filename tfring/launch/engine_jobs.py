"""Runs the launcher's jobs for an engine that starts the agents of the ranks."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TextIO

from tfring.launch.elastic.elastic_job import ElasticJobRunner
from tfring.launch.elastic.options import ElasticOptions
from tfring.launch.elastic.orders import Head, Orders
from tfring.launch.job import JobRunner
from tfring.launch.options.job_options import JobOptions
from tfring.launch.output.merger import OutputMerger
from tfring.launch.output.terminal import Terminal
from tfring.observe.explain.launched import RunRecords


@dataclass(frozen=True)
class Output:
    """Where the output of ranks goes.

    Attributes:
        stdout: None: that of this process.
        stderr: The same for error output.
        timestamps: Whether lines begin with the time.
        shown: Whether it is shown at all.
    """

    stdout: TextIO | None = None
    stderr: TextIO | None = None
    timestamps: bool = False
    shown: bool = True


class JobEnd(NamedTuple):
    """How a job ended: its exit code, and why it failed, "" if that is not known."""

    code: int
    reason: str


def run_job(job: JobOptions, output: Output) -> JobEnd:
    """Runs a job whose ranks stay, to its end.

    Raises:
        KeyboardInterrupt: Ctrl-C has ended it.
    """
    return _run(output, lambda merger, records: JobRunner(job, merger, records))


def run_elastic_job(
    job: JobOptions, elastic: ElasticOptions, make_head: Callable[[Orders], Head], output: Output
) -> JobEnd:
    """Runs an elastic job to its end.

    Args:
        job: Its options, without slots.
        elastic: With how many workers.
        make_head: Makes the coordinator, which tells its orders.
        output: Where output goes.

    Raises:
        KeyboardInterrupt: Ctrl-C has ended it.
    """
    return _run(
        output,
        lambda merger, records: ElasticJobRunner(job, make_head, elastic, merger, records),
    )


def _run(
    output: Output, make: Callable[[OutputMerger, RunRecords], JobRunner | ElasticJobRunner]
) -> JobEnd:
    ranks = None if output.shown else ()
    with Terminal(output.stdout, output.stderr) as terminal, RunRecords(os.environ) as records:
        out, err = terminal.stdout, terminal.stderr
        merger = OutputMerger(out, err, timestamps=output.timestamps, ranks=ranks)
        runner = make(merger, records)
        code = runner.run()
    if runner.stopped_by == signal.SIGINT:
        raise KeyboardInterrupt
    return JobEnd(code, runner.reason if isinstance(runner, JobRunner) else "")
