"""What watches each rank. A new thing that begins with init and ends with shutdown goes here."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import ClassVar

from tfring.observe.explain.at_trouble import TroubleExplainer, note_errors
from tfring.observe.explain.job_end import note_end
from tfring.observe.explain.launched import report_of
from tfring.observe.metrics import generation as metrics
from tfring.observe.observers.observers import Here, Observer, Observers
from tfring.observe.recorder import stacks
from tfring.observe.recorder.layout import RankState
from tfring.observe.recorder.own import set_own
from tfring.observe.recorder.places import id_of, record_files
from tfring.observe.recorder.reader import RecordError, read_header
from tfring.observe.report import run_lines
from tfring.observe.timeline import session
from tfring.runtime import _native
from tfring.runtime.settings.environment import warning_seconds

# Rank 0 may leave this much earlier than the last rank and still say that the job is done.
_OTHERS_SECONDS = 2.0
_LOOK_SECONDS = 0.02


class _State:
    """Of the present generation. Written by init and shutdown, which take turns."""

    record: str | None = None
    lines: Here | None = None  # this process prints how the job goes
    began = 0.0
    last_line = ""  # printed when the job has ended well
    stays: bool = False  # the record is in a folder that the user has named
    # Records of generations that this process has left, and whether they stay; their ends are not
    # noted yet.
    left: ClassVar[list[tuple[Path, bool]]] = []
    explainer: TroubleExplainer | None = None  # on rank 0 of several


def _watch_stacks(here: Here) -> None:
    _State.record = here.record
    stacks.watch(here.record, here.settings.stacks)


def _attach_timeline(here: Here) -> None:
    session.attach(
        rank=here.rank,
        local_rank=here.local_rank,
        megabytes=here.settings.timeline_megabytes,
        timeline=here.settings.timeline,
    )


def _begin_lines(here: Here) -> None:
    """Prints on rank 0 who trains where, if no launcher of tfring does."""
    _State.lines, _State.last_line = None, ""
    if here.settings.job_id is not None or here.rank != 0 or here.size == 1:
        return
    if here.record is None or not run_lines.wanted(here.settings.runtime):
        return
    _State.lines, _State.began = here, time.monotonic()
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


def _make_last_line() -> None:
    here, _State.lines = _State.lines, None
    if here is None or here.record is None:
        return
    report = report_of(record_files(Path(here.record).parent))
    failed = report is not None and any(rank.state == "failed" for rank in report.ranks)
    if not failed:
        _State.last_line = run_lines.last_line(time.monotonic() - _State.began, report)


def say_end() -> None:
    """Prints on rank 0 how a job went that ended well."""
    line, _State.last_line = _State.last_line, ""
    if line and _State.record is not None and _all_left(Path(_State.record).parent):
        _say(line)


def _all_left(job: Path) -> bool:
    """Waits a while for the other ranks of this host; tells whether all left well."""
    deadline = time.monotonic() + _OTHERS_SECONDS
    while True:
        states = set()
        for path in record_files(job):
            with contextlib.suppress(OSError, RecordError):  # removed by the rank, which has left
                states.add(read_header(path)["state"])
        if RankState.RUNNING not in states or time.monotonic() > deadline:
            return states <= {RankState.LEFT}
        time.sleep(_LOOK_SECONDS)


def _say(line: str) -> None:
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):  # nobody reads it
            print(line, file=sys.stderr, flush=True)


def _watch_end(here: Here) -> None:
    _State.stays = here.settings.record_dir is not None


def _remember_end() -> None:
    if _State.record is not None:
        _State.left.append((Path(_State.record), _State.stays))


def _note_ends() -> None:
    left, _State.left = _State.left, []
    for record, stays in left:
        note_end(record.parent, stays=stays)


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


def _drop_explainer() -> None:
    _State.explainer = None  # its thread ends with what it is about to say


OBSERVERS = Observers(
    [
        Observer("`tfring stacks`", _watch_stacks, end=lambda: stacks.unwatch(_State.record)),
        Observer(
            "what reads its own record",
            lambda here: set_own(here.record),
            end=lambda: set_own(None),
        ),
        Observer(
            "the timeline",
            _attach_timeline,
            end=session.detach,
            afterwards=session.make_files,
        ),
        Observer(
            "the metrics",
            lambda here: metrics.begin(here.rank, here.local_rank, here.record, here.settings),
            leaving=metrics.end,
        ),
        Observer("the lines of a run", _begin_lines, leaving=_make_last_line),
        Observer(
            "the end of the job",
            _watch_end,
            end=_remember_end,
            drop=lambda: None,  # the job goes on
            afterwards=_note_ends,
        ),
        Observer(
            "the explanation of trouble",
            _explain_trouble,
            leaving=lambda: _native.core.note_errors(""),  # our own end ends the calls
            end=_end_explainer,
            drop=_drop_explainer,
        ),
    ]
)
