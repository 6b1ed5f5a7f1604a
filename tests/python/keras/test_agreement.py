"""Long work of a rank while the others wait: how it ends when one of the others is lost."""

from __future__ import annotations

import threading
from typing import Any

import pytest

pytest.importorskip("tensorflow")

from tfring.keras.agreement import while_others_wait
from tfring.runtime import _native


def test_a_copy_has_ended_when_the_loss_of_a_rank_is_handled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rank then goes on with training, and changes the copied variables."""
    lost, copied = threading.Event(), threading.Event()

    def lose(*_: Any, **__: Any) -> Any:
        threading.Timer(0.5, lost.set).start()
        raise ConnectionError

    def copy() -> None:
        assert lost.wait(60)
        copied.set()

    monkeypatch.setattr(_native.core, "allreduce", lose)
    with pytest.raises(ConnectionError):
        while_others_wait(copy, finishes=True)
    assert copied.is_set()
