"""What watches every rank. A new thing that begins with init and ends with shutdown goes here."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

from tfring import _native
from tfring.explain.at_trouble import TroubleExplainer, note_errors
from tfring.explain.launched import report_of
from tfring.metrics import generation as metrics
from tfring.observers.observers import Here, Observer, Observers
from tfring.recorder import stacks
from tfring.recorder.catalog import finish
from tfring.recorder.own import set_own
from tfring.recorder.places import id_of, record_files
from tfring.report import run_lines
from tfring.report.kept import kept
from tfring.settings.environment import warning_seconds
from tfring.timeline import session


class _State:
    """Of the present generation. Written by init and shutdown, which take turns."""

    record: str | None = None
    reports: Here | None = None  # this process notes the report, or says how the job has gone
    began = 0.0
    last_line = ""  # what is to be said when the job has ended well
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
        take_hops=_native.core.take_hops,
    )


def _begin_report(here: Here) -> None:
    """Begins what a launcher of tfring does for its jobs, where there is none: it gives an id.

    Rank 0 says who trains where, and at the end how it went. The first rank of a host has what
    stays of the report noted. The launcher's elastic jobs end generations in a hurry.
    """
    _State.reports, _State.last_line = None, ""
    if here.settings.job_id is not None or here.size == 1 or here.record is None:
        return
    if here.local_rank == 0 or here.rank == 0:
        _State.reports, _State.began = here, time.monotonic()
    if here.rank == 0 and run_lines.wanted(here.settings.runtime):
        hosts = list(dict.fromkeys(here.hosts))
        line = run_lines.first_line(
            id_of(Path(here.record).parent.name),
            f"{here.size} ranks",
            hosts,
            # mpirun binds each rank to some of the CPUs that it has itself.
            devices=run_lines.own_devices(os.getppid()) if len(hosts) == 1 else "",
            transport=run_lines.transport(len(hosts), here.size, here.settings.runtime),
        )
        _say(line)


def _note_report() -> None:
    here, _State.reports = _State.reports, None
    if here is None or here.record is None:
        return
    folder = Path(here.record).parent
    report = report_of(record_files(folder))
    if here.settings.record_dir is None:
        finish(id_of(folder.name), "ended", "", kept(report) if report is not None else {})
    failed = report is not None and any(rank.state == "failed" for rank in report.ranks)
    if here.rank == 0 and not failed and run_lines.wanted(here.settings.runtime):
        _State.last_line = run_lines.last_line(time.monotonic() - _State.began, report)


def say_end() -> None:
    """Says on rank 0 how a job has gone that has ended well."""
    line, _State.last_line = _State.last_line, ""
    if line:
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
            leaving=session.about_to_leave,
            end=session.detach,
            afterwards=session.make_files,
        ),
        Observer(
            "the metrics",
            lambda here: metrics.begin(here.rank, here.local_rank, here.record, here.settings),
            leaving=metrics.end,
        ),
        Observer("the report", _begin_report, leaving=_note_report),
        Observer(
            "the explanation of trouble",
            _explain_trouble,
            leaving=lambda: _native.core.note_errors(""),  # it is our end that ends calls
            end=_end_explainer,
            drop=_drop_explainer,
        ),
    ]
)
