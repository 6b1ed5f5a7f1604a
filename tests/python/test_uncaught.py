"""The output of a rank that an exception ends; jobs of mpirun are in test_failed_jobs.py."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from tfring.runtime import _native
from tfring.runtime.signals import uncaught


def told(
    error: BaseException,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    size: int,
) -> list[str]:
    """What rank 1 prints of an exception."""
    core = SimpleNamespace(is_initialized=lambda: True, size=lambda: size, rank=lambda: 1)
    monkeypatch.setattr(_native, "core", core, raising=False)
    try:
        raise error
    except BaseException as caught:
        uncaught._tell(type(caught), caught, caught.__traceback__)
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("error", "begin", "lines"),
    [
        (KeyError("image_id"), "tfring: Rank 1 failed in test_uncaught.py:", 4),
        (KeyboardInterrupt(), "tfring: Rank 1 was interrupted in test_uncaught.py:", 1),
        (
            RuntimeError("rank 0 (host a) was lost: gone"),
            "tfring: Rank 1 was stopped in test_uncaught.py:",
            1,
        ),
    ],
)
def test_one_line_says_what_has_happened(
    error: BaseException,
    begin: str,
    lines: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = told(error, monkeypatch, capsys, size=2)
    assert said[0].startswith(begin) and len(said) == lines, said
    assert "Traceback" not in "".join(said)
    alone = told(error, monkeypatch, capsys, size=1)
    assert alone[0] == "Traceback (most recent call last):"


def test_hooks_of_others_and_full_tracebacks_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TFRING_X_AGENT", raising=False)
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    uncaught.watch("full")
    assert sys.excepthook is sys.__excepthook__
    monkeypatch.setenv("TFRING_X_AGENT", "x")
    uncaught.watch("short")
    assert sys.excepthook is sys.__excepthook__
    monkeypatch.delenv("TFRING_X_AGENT")
    monkeypatch.setattr(sys, "excepthook", print)
    uncaught.watch("short")
    assert sys.excepthook is print
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    uncaught.watch("short")
    assert sys.excepthook is uncaught._tell
