"""What watches a rank from init to shutdown. None of it can harm training."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfring.observe.explain.at_trouble import TroubleExplainer, note_errors
from tfring.observe.explain.job_end import note_end
from tfring.observe.explain.launched import report_of
from tfring.observe.metrics import endpoint as metrics
from tfring.observe.recorder import stacks
from tfring.observe.recorder.layout import RankState
from tfring.observe.recorder.own import set_own
from tfring.observe.recorder.places import id_of, record_files
from tfring.observe.recorder.reader import RecordError, read_header
from tfring.observe.report import run_lines
from tfring.observe.timeline import session
from tfring.runtime import _native
from tfring.runtime.settings.environment import Settings, warning_seconds

_log = logging.getLogger("tfring")
# Rank 0 may leave this much earlier than the last rank and still say that the job is done.
_OTHERS_SECONDS = 2.0
_LOOK_SECONDS = 0.02


@dataclass(frozen=True)
class Here:
    """The rank that is watched.

    Attributes:
        rank: Its number in the job.
        size: The number of ranks of the job.
        local_rank: Its number on its host.
        hosts: The name of each rank's host.
        record: The file of its record; None: there is none.
        settings: From its environment.
    """

    rank: int
    size: int
    local_rank: int
    hosts: Sequence[str]
    record: str | None
    settings: Settings


class _State:
    """Of the present generation. Written by init and shutdown, which take turns."""

    here: Here | None = None
    lines_began: float | None = None  # this process prints how the job goes, since then
    last_line = ""  # printed when the job has ended well
    explainer: TroubleExplainer | None = None  # on rank 0 of several


# The ranks that this process was and whose ends are not noted yet.
_left: list[Here] = []


def begin(here: Here) -> None:
    """Begins to watch, when the runtime runs."""
    _State.here = here
    _each(
        f"of rank {here.rank} could not begin",
        {
            "`tfring stacks`": lambda: stacks.watch(here.record, here.settings.stacks),
            "what reads its own record": lambda: set_own(here.record),
            "the timeline": lambda: session.attach(
                here.rank,
                here.local_rank,
                here.settings.timeline_megabytes,
                here.settings.timeline,
            ),
            "the metrics": lambda: metrics.begin(
                here.rank, here.local_rank, here.record, here.settings
            ),
            "the lines of a run": lambda: _begin_lines(here),
            "the explanation of trouble": lambda: _explain_trouble(here),
        },
    )


@contextlib.contextmanager
def ending() -> Iterator[None]:
    """Ends to watch; the body ends the runtime."""
    here = _leave()
    try:
        yield
    finally:
        if here is not None:
            _left.append(here)
            _each("could not end", {"the explanation of trouble": _end_explainer})
            _end(here, timeline=True)


def drop() -> None:
    """Ends to watch, after the runtime was abandoned, without waiting for anything."""
    here = _leave()
    if here is not None:
        _State.explainer = None  # its thread ends with what it is about to say
        _end(here, timeline=False)


def note_ends() -> None:
    """Notes the end of jobs that this process has left, which may take long; without a lock.

    The files of their timelines are made first.
    """
    _each("could not end", {"the timeline": session.make_files})
    while _left:
        here = _left.pop()
        if here.record is not None:
            folder, stays = Path(here.record).parent, here.settings.record_dir is not None
            end = functools.partial(note_end, folder, stays=stays)
            _each("could not end", {"the end of the job": end})


def say_end() -> None:
    """Prints on rank 0 how a job went that ended well."""
    line, _State.last_line = _State.last_line, ""
    here = _left[-1] if _left else None
    if here is not None and here.record is not None and line:
        _say_if_all_left(line, Path(here.record).parent)


def _leave() -> Here | None:
    """Prepares for the end of the runtime."""
    here, _State.here = _State.here, None
    if here is not None:
        _each(
            "could not prepare for the end",
            {
                # Our own end ends the calls.
                "the explanation of trouble": lambda: _native.core.note_errors(""),
                "the lines of a run": lambda: _make_last_line(here),
                "the metrics": metrics.end,
            },
        )
    return here


def _end(here: Here, *, timeline: bool) -> None:
    _each(
        "could not end",
        {
            "the timeline": lambda: session.detach(write=timeline),
            "what reads its own record": lambda: set_own(None),
            "`tfring stacks`": lambda: stacks.unwatch(here.record),
        },
    )


def _each(what: str, acts: dict[str, Callable[[], None]]) -> None:
    """Calls functions. If one fails, it is a warning, and the others are called."""
    for name, act in acts.items():
        try:
            act()
        except Exception as error:  # whatever it is: training goes on without it
            _log.warning("%s %s: %s: %s", name, what, type(error).__name__, error, exc_info=True)


def _begin_lines(here: Here) -> None:
    """Prints on rank 0 who trains where, if no launcher of tfring does."""
    _State.lines_began, _State.last_line = None, ""
    if here.settings.job_id is not None or here.rank != 0 or here.size == 1:
        return
    if here.record is None or not run_lines.wanted(here.settings.runtime):
        return
    _State.lines_began = time.monotonic()
    hosts, runtime = list(dict.fromkeys(here.hosts)), here.settings.runtime
    # mpirun binds each rank to some of the CPUs that it has itself.
    devices = run_lines.own_devices(os.getppid()) if len(hosts) == 1 else ""
    _say(
        run_lines.first_line(
            id_of(Path(here.record).parent.name),
            f"{here.size} ranks",
            hosts,
            devices=devices,
            transport=run_lines.transport(len(hosts), here.size, devices, runtime),
        )
    )


def _make_last_line(here: Here) -> None:
    began, _State.lines_began = _State.lines_began, None
    if began is None or here.record is None:
        return
    report = report_of(record_files(Path(here.record).parent))
    failed = report is not None and any(rank.state == "failed" for rank in report.ranks)
    if not failed:
        _State.last_line = run_lines.last_line(time.monotonic() - began, report)


def _say_if_all_left(line: str, job: Path) -> None:
    """Waits a while for the other ranks of this host; prints a line if all have left well."""
    deadline = time.monotonic() + _OTHERS_SECONDS
    while True:
        states = set()
        for path in record_files(job):
            with contextlib.suppress(OSError, RecordError):  # removed by the rank, which has left
                states.add(read_header(path)["state"])
        if RankState.RUNNING not in states or time.monotonic() > deadline:
            break
        time.sleep(_LOOK_SECONDS)
    if states <= {RankState.LEFT}:
        _say(line)


def _say(line: str) -> None:
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):  # nobody reads it
            print(line, file=sys.stderr, flush=True)


def _explain_trouble(here: Here) -> None:
    if here.size == 1 or here.record is None:
        return
    note_errors(here.record)
    if here.rank == 0:
        _State.explainer = TroubleExplainer(here.record, warning_seconds(here.settings.runtime))


def _end_explainer() -> None:
    explainer, _State.explainer = _State.explainer, None
    if explainer is not None:
        explainer.join()
