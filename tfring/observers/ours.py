"""What watches every rank. A new thing that begins with init and ends with shutdown goes here."""

from __future__ import annotations

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
from tfring.settings.environment import warning_seconds
from tfring.timeline import session


class _State:
    """Of the present generation. Written by init and shutdown, which take turns."""

    record: str | None = None
    reported: Path | None = None  # the folder of the records whose report this process notes
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


def _keep_report(here: Here) -> None:
    """Has what stays of the report noted at the end, where no launcher does it.

    A launcher gives an id. Its elastic jobs end generations in a hurry.
    """
    alone = here.settings.job_id is None and here.settings.record_dir is None
    if alone and here.size > 1 and here.local_rank == 0 and here.record:
        _State.reported = Path(here.record).parent


def _note_report() -> None:
    folder, _State.reported = _State.reported, None
    if folder is not None:
        finish(id_of(folder.name), "ended", "", report_of(record_files(folder)))


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
        Observer("the report", _keep_report, leaving=_note_report),
        Observer(
            "the explanation of trouble",
            _explain_trouble,
            leaving=lambda: _native.core.note_errors(""),  # it is our end that ends calls
            end=_end_explainer,
            drop=_drop_explainer,
        ),
    ]
)
