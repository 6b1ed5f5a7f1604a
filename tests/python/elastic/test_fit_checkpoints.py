"""A generation of an elastic job has one of the folder; each checkpoint asks for its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

from tfring.checkpoint import Checkpointer
from tfring.elastic import process as processes
from tfring.keras.callbacks.checkpoints import training_checkpoints, training_state
from tfring.keras.elastic.fit_state import Epochs, FitCheckpoints


def made(checkpoints: Checkpointer) -> FitCheckpoints:
    never: Any = {"every_steps": None, "every_seconds": None}
    return FitCheckpoints(checkpoints, every_epochs=1, restore=True, **never)


@pytest.mark.parametrize(
    ("allowed", "at_change", "questions", "there"),
    [(False, False, 1, False), (True, False, 2, True), (False, True, 0, True)],
)
def test_the_generation_that_saved_is_asked_for(
    allowed: bool,
    at_change: bool,
    questions: int,
    there: bool,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """But not for what all ranks have ended a generation with: the next one goes on from it."""
    asked: list[int] = []

    def may_publish(generation: int) -> bool:
        process.generation = 4  # the next one begins meanwhile
        asked.append(generation)
        return allowed

    def save(checkpoints: Any, model: Any, **more: Any) -> bool:
        wanted = {name: more[name] for name in ("step", "generation", "must", "may_publish")}
        return bool(checkpoints.save({"w": np.ones(2)}, **wanted))

    process = SimpleNamespace(generation=3, may_publish=may_publish)
    monkeypatch.setattr(processes, "present", lambda: process)
    monkeypatch.setattr(training_state, "save_checkpoint", save)
    monkeypatch.setattr(training_checkpoints, "highest", lambda mine, name: mine)
    state: Any = SimpleNamespace(
        model=None,
        data=None,
        trained=5,
        epoch=1,
        batch=2,
        stopped=False,
        epochs=Epochs(),
    )
    monkeypatch.setattr(training_state, "reserve", lambda checkpoints, _: checkpoints.reserve())
    assert Checkpointer(tmp_path).reserve() == 0
    checkpoints = Checkpointer(tmp_path, asynchronous=False)
    fit = made(checkpoints)
    fit.save_state(state, at_change=at_change)
    assert asked == [3] * questions
    assert [info.order for info in checkpoints.all()] == ([(1, 5)] if there else [])
    fit.generation = None  # the next one begins
    fit.save_state(state, at_change=True)
    assert checkpoints.all()[-1].order == (2, 5)
