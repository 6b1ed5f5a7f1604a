"""Settings of the checkpoint tests: failed storage is retried at once."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfring.checkpoint.retries.FIRST_DELAY", 0.001)
