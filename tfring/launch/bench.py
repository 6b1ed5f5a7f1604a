"""``tfring bench``: starts ranks that measure, or is one of them, or compares two results."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tfring.bench.compare import changes, failed, lines, warnings
from tfring.bench.display import MARK, Display, Files
from tfring.bench.options import BenchOptions, bench_options
from tfring.bench.options import add_options as add_measured
from tfring.bench.peers.available import chosen_peers
from tfring.bench.plot import require_matplotlib
from tfring.bench.result import read_result
from tfring.job.environments import find_identity
from tfring.job.environments.identity import Identity, IdentityError, Rendezvous
from tfring.launch.hosts.errors import UsageError
from tfring.launch.job import JobRunner
from tfring.launch.options.option import add_options as add_fields
from tfring.launch.options.option import given, read_options
from tfring.launch.options.resolve import job_options
from tfring.launch.options.run_options import RunOptions
from tfring.launch.output.merger import OutputMerger, Stream
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
    add("--json", metavar="FILE", help="write the result, with all samples, for --compare")
    add("--plot", metavar="FILE", help="draw it: a file that ends in .png, .svg or .pdf")
    add("--compare", nargs=2, metavar="FILE", help="compare two results; measure nothing")
    add(
        "--fail-above",
        type=float,
        metavar="RATIO",
        help="with --compare: exit code 1 if something is surely slower, by more than this: 1.1",
    )


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns the exit code.

    Raises:
        ValueError: An option is impossible; the message is for the user.
        OSError: A file cannot be read or written.
    """
    if options.compare:
        return _compare(options.compare, options.fail_above)
    if options.fail_above is not None:
        raise ValueError("--fail-above goes with --compare a.json b.json")
    what = bench_options(options)
    try:
        here = find_identity(os.environ)
    except IdentityError as error:
        raise ValueError(str(error)) from None
    files = _files(options) if here.rank == 0 else Files()
    chosen_peers(what.against, here.rendezvous is Rendezvous.MPI)
    if here.rendezvous is Rendezvous.NONE:
        return _start(options, what, files)
    return _become_rank(options, what, files, here)


def _files(options: argparse.Namespace) -> Files:
    """Returns the files to write, checked before anything is measured."""
    if options.plot is not None:
        require_matplotlib()
        if not options.plot.endswith((".png", ".svg", ".pdf")):
            raise ValueError(f"--plot {options.plot}: it has to end in .png, .svg or .pdf")
    for name in filter(None, (options.json, options.plot)):
        folder = Path(name).absolute().parent
        if not os.access(folder, os.W_OK):
            raise ValueError(f"{name} cannot be written: {folder} is no folder that we may write")
    return Files(options.json, options.plot)


def _become_rank(
    options: argparse.Namespace, what: BenchOptions, files: Files, here: Identity
) -> int:
    """Goes on as the rank that this process is. Does not return."""
    named = given(read_options(RunOptions, options), *_PLACES)
    if named:
        raise ValueError(
            f"{', '.join(named)}: this process is rank {here.rank} of {here.size} already, started "
            f"by {here.source}: leave that out, or run tfring bench by itself"
        )
    sys.stdout.flush()
    os.execv(sys.executable, _command(what, files))


def _command(what: BenchOptions, files: Files | None) -> list[str]:
    given = {
        "options": what.to_json(),
        "files": None if files is None else dataclasses.asdict(files),
    }
    return [sys.executable, "-m", _PROGRAM, json.dumps(given)]


def _start(options: argparse.Namespace, what: BenchOptions, files: Files) -> int:
    """Starts the ranks and shows what they find."""
    asked = read_options(RunOptions, options)
    nowhere = asked.num_proc is None and not asked.known_hosts
    job = job_options(
        dataclasses.replace(
            asked,
            num_proc=LOCAL_RANKS if nowhere else asked.num_proc,
            x=(("TF_CPP_MIN_LOG_LEVEL", "2"), *asked.x),
            command=tuple(_command(what, None)),
        )
    )
    with Terminal() as terminal, RunRecords({**os.environ, **job.environment}) as records:
        with Display(files) as display:
            merger = _EventMerger(terminal, display.handle)
            try:
                code = JobRunner(job, merger, records).run()
            finally:
                display.write()
        if display.error:
            raise UsageError(display.error)
        return code


class _EventMerger(OutputMerger):
    """Merges the output of the ranks, less the lines with which rank 0 tells what it has found."""

    def __init__(self, terminal: Terminal, handle: Callable[[dict[str, Any]], None]) -> None:
        super().__init__(terminal.stdout, terminal.stderr)
        self._handle = handle
        self._rest = b""
        self._told_error = False

    def feed(self, stream: Stream, data: bytes, now: float) -> None:
        """Takes output of a rank."""
        if (stream.rank, stream.name) != (0, "stdout"):
            super().feed(stream, data, now)
            return
        *complete, self._rest = (self._rest + data).split(b"\n")
        for line in complete:
            if line.startswith(MARK.encode()):
                self._event(json.loads(line[len(MARK) :]))
            else:
                super().feed(stream, line + b"\n", now)

    def finish(self, stream: Stream) -> None:
        """Takes note that a stream of a rank has ended."""
        if (stream.rank, stream.name) == (0, "stdout") and self._rest:
            rest, self._rest = self._rest, b""
            super().feed(stream, rest, time.monotonic())
        super().finish(stream)

    def _event(self, event: dict[str, Any]) -> None:
        self._told_error |= event["event"] == "error"
        self._handle(event)

    def note(self, text: str) -> None:
        """Writes a message of the launcher, unless rank 0 has said what was wrong."""
        if not self._told_error:
            super().note(text)


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
