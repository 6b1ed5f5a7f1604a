"""``tfring top``: a job while it runs."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
import threading
import time
from collections.abc import Sequence

from tfring.observe.commands.dump import write_dump
from tfring.observe.commands.which import add_job_argument, resolve_job
from tfring.observe.explain.explain import make_verdict
from tfring.observe.json_output import add_json_option, print_json
from tfring.observe.live.hosts import OtherHosts, add_host_options, name_job
from tfring.observe.live.overview import Overview
from tfring.observe.live.screen import Screen
from tfring.observe.live.table import print_page, require_rich
from tfring.observe.live.threads import describe_stacks
from tfring.observe.live.watch import Watch
from tfring.observe.recorder.job import load_job
from tfring.observe.recorder.reader import RecordError
from tfring.observe.recorder.stacks import take_stacks

_ANSWER_SECONDS = 30.0
Answer = Overview


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.description = (
        "Shows a job while it trains or hangs: epoch, loss, samples per second, what "
        "each rank waits for, processor, memory and GPU. The key ? explains the columns."
    )
    parser.epilog = "tfring top\ntfring top 6d83ae --once"
    add_job_argument(parser)
    add = parser.add_argument
    add("--once", action="store_true", help="print one table and end")
    add_json_option(parser, Answer, "instead of tables, at each look ")
    add(
        "-n",
        "--interval",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="between two looks (default %(default)g)",
    )
    add_host_options(parser)


def run(options: argparse.Namespace) -> int:
    """Shows the job until `q`; with --once prints one table after one interval.

    Raises:
        ValueError: An option is impossible.
    """
    _check(options.interval)
    if not options.json:
        require_rich()
    given = resolve_job(options.job, elsewhere=bool(options.host))
    if not options.host:
        return _show(options, Watch(given))
    words = ["top", *name_job(options.job, _job_here(given)), "--json"]
    with OtherHosts(options, [*words, "--interval", str(options.interval)]) as others:
        others.wait(_ANSWER_SECONDS)
        return _show(options, Watch(given, others), others)


def answer(given: Sequence[str], interval: float = 1.0) -> Answer:
    """Returns what a job does, with rates over one interval.

    Raises:
        RecordError: There is no such job.
        ValueError: An impossible interval.
    """
    _check(interval)
    watch = Watch(resolve_job(given))
    watch.look()
    return _look_again(watch, interval)


def _check(interval: float) -> None:
    if not 0.05 <= interval <= 3600:
        raise ValueError(f"--interval {interval}: use 0.05 to 3600 seconds")


def _job_here(given: list[str]) -> str:
    try:
        return load_job(given).job if given else ""
    except RecordError:
        return ""


def _show(options: argparse.Namespace, watch: Watch, others: OtherHosts | None = None) -> int:
    if options.json or options.once:
        return _print(options, watch)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ValueError("this is no terminal: use --once for one table, or --json for objects")

    latest = _LatestVerdict(watch.given)

    def look() -> Overview:
        view = watch.look()
        troubles = others.troubles() if others else []
        if troubles:
            return dataclasses.replace(view, trouble=troubles[0])
        return dataclasses.replace(view, verdict=latest.get(calm=view.calm))

    def stacks() -> str:
        return describe_stacks(take_stacks(watch.records())) or "no rank has a record here any more"

    def dump() -> str:
        return f"kept in {write_dump(load_job(watch.given))}"

    Screen(look, {"d": dump, "s": stacks}, options.interval).run()
    return 0


def _print(options: argparse.Namespace, watch: Watch) -> int:
    """Prints a table or an object, or objects until the reader is gone."""
    watch.look()
    while True:
        view = _look_again(watch, options.interval)
        if options.json:
            print_json(view)
        else:
            print_page(view)
        if options.once:
            return 0


def _look_again(watch: Watch, interval: float) -> Overview:
    """Returns the job after one interval, with the verdict if a rank looks wrong."""
    time.sleep(interval)
    view = watch.look()
    return view if view.calm else dataclasses.replace(view, verdict=_find_verdict(watch.given))


def _find_verdict(given: Sequence[str]) -> str:
    """Returns a sentence on what is wrong with a job; "" if its records go just now."""
    with contextlib.suppress(OSError, RecordError):
        sentence, more, _ = make_verdict(load_job(given)).partition(". ")
        return f"{sentence}." if more else sentence
    return ""


class _LatestVerdict:
    """The verdict on a job, found on a thread because it takes a second."""

    def __init__(self, given: Sequence[str]) -> None:
        self._given = given
        self._thread: threading.Thread | None = None
        self._text = ""  # replaced whole

    def get(self, *, calm: bool) -> str:
        """Returns the last verdict and starts to look again; `calm`: no rank looks wrong."""
        if calm:
            self._text = ""
        elif self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._look, daemon=True)
            self._thread.start()
        return self._text

    def _look(self) -> None:
        self._text = _find_verdict(self._given)
