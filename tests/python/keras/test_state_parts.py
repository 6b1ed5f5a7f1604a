"""Commits of sharded states: what is kept, and what is refused. An elastic job of one rank."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring.keras as hvd
from tfring.elastic import process as processes
from tfring.elastic.messages import REMOVED
from tfring.elastic.state import sync
from tfring.keras.elastic import fitting, state_parts
from tfring.keras.elastic.fit_state import FitState
from tfring.keras.elastic.state_parts import StateParts
from tfring.runtime import topology


@pytest.fixture(autouse=True)
def elastic(monkeypatch: pytest.MonkeyPatch) -> Any:
    calls = {"committed": lambda position: None, "step": lambda step: None}
    link = SimpleNamespace(change_pending=False, **calls)
    process = SimpleNamespace(
        generation=1,
        record=SimpleNamespace(members=[SimpleNamespace(host="a")]),
        link=link,
        position=None,
    )
    hvd.init()
    monkeypatch.setattr(topology, "slot", lambda: 0)
    monkeypatch.setattr(processes, "present", lambda: process)
    yield
    hvd.shutdown()


def built() -> tuple[Any, Any]:
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.1), shard_states=True)
    model.compile(optimizer, "mse", jit_compile=False)
    return model, optimizer


def step(model: Any, optimizer: Any) -> None:
    optimizer.apply([tf.ones(v.shape) for v in model.trainable_variables])


@pytest.fixture
def trained() -> tuple[Any, Any]:
    """A state after a step that is committed, and the function that does a step."""
    model, optimizer = built()
    state = hvd.elastic.KerasState(model)
    sync(state)
    step(model, optimizer)
    state.commit()
    return state, lambda: step(model, optimizer)


def commits(state: Any) -> list[int]:
    return [held.version.commit for held in state._parts._versions.held()]


def test_a_version_is_kept_until_all_ranks_have_the_next_one(
    trained: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks are about to leave, and one is lost while each gets all parts."""
    state, train = trained

    def lost(self: Any) -> None:
        raise tf.errors.AbortedError(None, None, "rank 1 is lost")

    monkeypatch.setattr(StateParts, "spread", lost)
    state.on_hosts_updated(1.0, REMOVED)
    train()
    with pytest.raises(tf.errors.AbortedError):
        state.check_host_updates()
    assert commits(state) == [1, 2]
    state.commit()
    assert commits(state) == [3]


def test_a_commit_before_the_states_are_divided_is_refused(
    trained: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    state, _ = trained
    monkeypatch.setattr(topology, "size", lambda: 2)
    said = r"rank 0: this commit comes before .* the 2 present ranks.*\nDo not commit in a reset"
    with pytest.raises(RuntimeError, match=said):
        state.commit()


def test_weights_that_are_saved_without_a_commit_are_refused(trained: tuple[Any, Any]) -> None:
    state, train = trained
    train()
    state.save()
    said = r"weights after 2 steps, and .* those after 1\.\nCall state.commit"
    with pytest.raises(RuntimeError, match=said):
        state.sync()


@pytest.mark.parametrize(("sent", "expected"), [(0, 5), (5, 0)])
def test_another_setting_of_copies_on_another_rank_is_refused(
    trained: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, sent: int, expected: int
) -> None:
    """One of both has TFRING_COMMIT_COPIES=off: it sends nothing, or expects nothing."""
    state, _ = trained
    monkeypatch.setattr(topology, "size", lambda: 2)
    monkeypatch.setattr(state_parts, "alltoall", lambda *_, **more: (tf.zeros([sent]), None))
    said = rf"has got {sent} numbers .* expected {expected}\.\nSet TFRING_COMMIT_COPIES to the same"
    with pytest.raises(RuntimeError, match=said):
        state._parts._swap({}, {1: [(0, expected)]} if expected else {})


class Ends(keras.callbacks.Callback):
    """Sets other weights at the end of the training."""

    def on_train_end(self, logs: Any = None) -> None:
        for variable in self.model.trainable_variables:
            variable.assign(tf.fill(variable.shape, 7.0))


@pytest.mark.parametrize("how", ["callback", "EMA"])
def test_the_end_of_fit_is_committed(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a rank is lost then, the others go back to it, not to the last step."""
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    optimizer: Any = keras.optimizers.Adam(0.1, use_ema=how == "EMA")
    optimizer = hvd.DistributedOptimizer(optimizer, shard_states=True)
    model.compile(optimizer, "mse", jit_compile=False)
    states: list[FitState] = []

    class Noted(FitState):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            states.append(self)

    monkeypatch.setattr(fitting, "FitState", Noted)
    monkeypatch.setattr(processes, "present", lambda: None)
    x, y = np.ones((8, 5), "float32"), np.ones((8, 3), "float32")
    callbacks = [Ends()] if how == "callback" else []
    hvd.elastic.fit(model, (x, y), epochs=2, policy=4, callbacks=callbacks, verbose=0)
    weights = model.get_weights()
    assert how == "EMA" or np.all(weights[0] == 7.0)
    states[0].restore()
    np.testing.assert_equal(model.get_weights(), weights)
