"""What rank 0 reports of its job by itself: when its runtime warns, and when the job breaks.

The runtime and the records are fakes.
"""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from made_records import NOBODY, write_record

from tfring.observe.explain import at_trouble
from tfring.observe.explain.at_trouble import TroubleExplainer, note_errors
from tfring.observe.recorder import catalog, places
from tfring.observe.recorder.layout import RankState

GENERATION = 3
SECOND = 1_000_000_000
SAID = "Rank 1 (host host, process"
RAW = "the runtime warns"


class Runtime:
    """Warns so often, then ends; keeps what errors are to say."""

    def __init__(self, warnings: int) -> None:
        self._left = warnings
        self.notes: list[tuple[str, str]] = []
        self.generations: set[int] = set()  # whose errors get the notes

    def generation_state(self) -> SimpleNamespace:
        return SimpleNamespace(number=GENERATION)

    def wait_for_warning(self, timeout: float, generation: int) -> tuple[bool, list[str]] | None:
        assert generation == GENERATION
        self._left -= 1
        return (True, [RAW]) if self._left >= 0 else None

    def note_errors(self, note: str, stall: str = "", generation: int = 0) -> None:
        self.generations.add(generation)
        self.notes.append((note, stall))


def write_job(folder: Path, *, lost: bool, state: RankState = RankState.RUNNING) -> Path:
    """Two ranks, of which rank 1 may be gone; returns the record of rank 0, which lives."""
    call = {"number": 1, "name": "loss", "invocation": 1, "submitted": 5 * SECOND}
    times = {"awake": 6 * SECOND, "started_monotonic": 4 * SECOND}
    own = {"pid": os.getpid(), "state": state, "calls": [call]}
    path = write_record(folder / "rank-0.record", 0, 2, **own, **times)
    pid = NOBODY if lost else os.getpid()
    write_record(folder / "rank-1.record", 1, 2, pid=pid, calls=[call], **times)
    return path


def explain(record: Path, monkeypatch: pytest.MonkeyPatch, warnings: int = 1) -> Runtime:
    """Runs an explainer until its runtime has ended."""
    runtime = Runtime(warnings)
    monkeypatch.setattr(at_trouble, "_native", SimpleNamespace(core=runtime))
    TroubleExplainer(str(record), 10.0).join()
    assert runtime.generations <= {GENERATION}  # never those of one that begins meanwhile
    return runtime


def test_what_is_wrong_is_said_once_and_goes_into_the_error_of_a_stall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    record = write_job(tmp_path / "0123456789abcdef-0123456789ab", lost=True)
    with caplog.at_level(logging.WARNING, "tfring"):
        runtime = explain(record, monkeypatch, warnings=2)
    assert [line.getMessage().startswith(SAID) for line in caplog.records] == [True]
    assert RAW not in caplog.text  # the explanation speaks alone
    assert len(runtime.notes) == 2
    for note, stall in runtime.notes:
        assert note == "`tfring explain 012345` says more."
        assert stall.startswith("At the last warning: Rank 1 (host host, process")


def test_where_no_rule_knows_more_the_runtime_speaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    record = write_job(tmp_path / "job", lost=False)
    with caplog.at_level(logging.WARNING, "tfring"):
        runtime = explain(record, monkeypatch)
    assert [line.getMessage() for line in caplog.records] == [RAW]  # no rule knows more
    assert [stall for _, stall in runtime.notes] == [""]  # of a stall that is over


@pytest.mark.parametrize(
    ("launched", "state", "says"),
    [
        (True, RankState.FAILED, False),  # `tfring run` says it at the end
        (True, RankState.RUNNING, True),
        (False, RankState.FAILED, True),
    ],
)
def test_why_a_job_has_broken_is_said_by_who_started_it_or_by_rank_0(
    launched: bool,
    state: RankState,
    says: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(places, "MEMORY", tmp_path)
    catalog.note_begin("job", ["train"], tmp_path, launched=launched)
    record = write_job(tmp_path / "job", lost=True, state=state)
    with caplog.at_level(logging.WARNING, "tfring"):
        explain(record, monkeypatch)
    assert (SAID in caplog.text) == says


def test_neither_lost_records_nor_a_mistake_in_a_rule_end_the_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    record = write_job(tmp_path / "job", lost=True)

    def fails(given: object) -> None:
        raise LookupError(f"planted in {given}")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "tfring"):
        patch.setattr(at_trouble, "explain_now", fails)
        assert len(explain(record, patch, warnings=2).notes) == 2
    assert caplog.text.count("LookupError: planted in") == 2
    shutil.rmtree(record.parent)
    caplog.clear()
    assert len(explain(record, monkeypatch, warnings=2).notes) == 2
    assert [line.getMessage() for line in caplog.records] == [RAW]


def test_errors_name_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime(0)
    monkeypatch.setattr(at_trouble, "_native", SimpleNamespace(core=runtime))
    note_errors("/records/0123456789abcdef-0123456789ab/rank-1.record", "Rank 2 sleeps.")
    assert runtime.notes == [("`tfring explain 012345` says more.", "Rank 2 sleeps.")]
