"""What watches a rank cannot harm it."""

from __future__ import annotations

import logging

import pytest

pytest.importorskip("tfring.runtime._native")

import tfring
from tfring.observe import observers
from tfring.observe.recorder.own import own_path


def test_one_that_fails_is_a_warning_and_keeps_nothing_from_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*given: object, **named: object) -> None:
        raise LookupError("planted")

    monkeypatch.setattr(observers.session, "attach", fails)
    monkeypatch.setattr(observers.session, "detach", fails)
    with caplog.at_level(logging.WARNING, "tfring"):
        for _ in range(2):  # init may follow a shutdown
            tfring.init()
            assert own_path() is not None
            tfring.shutdown()
            assert own_path() is None
    said = [line.getMessage() for line in caplog.records]
    assert (
        said
        == [
            "the timeline of rank 0 could not begin: LookupError: planted",
            "the timeline could not end: LookupError: planted",
        ]
        * 2
    )
