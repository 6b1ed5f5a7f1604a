"""elastic.run's loop: how it handles each exception, with fake jobs."""

from __future__ import annotations

import types
from typing import Any

import pytest

pytest.importorskip("tfring.runtime._native")

from tfring.elastic import loop, recovery
from tfring.elastic import process as processes
from tfring.elastic.errors import Dismissed, HorovodInternalError, HostsUpdatedInterrupt
from tfring.elastic.loop import run
from tfring.elastic.recovery import ElasticRecovery, Recovery
from tfring.elastic.state import State

# A worker that copies no commits.
NO_MEMORY = types.SimpleNamespace(memory=())


class Recorded(State):
    """A state that notes its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def save(self) -> None:
        self.calls.append("save")

    def restore(self) -> None:
        self.calls.append("restore")

    def sync(self) -> None:
        self.calls.append("sync")

    def reset(self) -> None:
        self.calls.append("reset")


class MadeUpJob:
    """A job that notes its calls; `lost` exceptions mean that a rank is lost."""

    def __init__(self, calls: list[str], finished: list[bool]) -> None:
        self.calls, self.finished = calls, finished
        self.lost: type[Exception] = OSError
        self.exits = 0

    def enter(self, state: State) -> None:
        self.calls.append("enter")

    def exit(self) -> None:
        self.exits += 1

    def sync(self, state: State) -> None:
        state.sync()

    def may_go_on(self, error: Exception, state: State) -> bool:
        return isinstance(error, self.lost)

    def after_failure(self, state: State) -> None:
        self.calls.append("after failure")

    def at_boundary(self, state: State) -> None:
        self.calls.append("at boundary")

    def finish(self, state: State) -> bool:
        self.calls.append("finish")
        return self.finished.pop(0)


def train(
    monkeypatch: pytest.MonkeyPatch, outcomes: list[Any], finished: list[bool] | None = None
) -> tuple[Any, list[str]]:
    """Runs a function that does these things one call after the other."""
    state = Recorded()
    job = MadeUpJob(state.calls, finished or [True])
    monkeypatch.setattr(loop, "present_recovery", lambda: job)

    @run
    def function(given: State, first: int, *, second: int) -> Any:
        assert given is state and (first, second) == (1, 2)
        state.calls.append("train")
        outcome = outcomes.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    assert function.__name__ == "function"
    try:
        return function(state, 1, second=2), state.calls
    finally:
        assert job.exits == 1


def test_a_lost_rank_and_a_change_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    value, calls = train(monkeypatch, [OSError(), HostsUpdatedInterrupt(), 3])
    again = ["reset", "sync", "train"]
    begin = ["enter", "sync", "train"]
    assert value == 3
    assert calls == [*begin, "after failure", *again, "at boundary", *again, "finish"]


def test_a_rank_that_is_lost_before_all_are_through(monkeypatch: pytest.MonkeyPatch) -> None:
    value, calls = train(monkeypatch, [1, 2], [False, True])
    assert value == 2
    assert calls == ["enter", "sync", "train", "finish", "reset", "sync", "train", "finish"]


def test_other_exceptions_leave_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (ValueError("mine"), KeyboardInterrupt(), SystemExit(3)):
        with pytest.raises(type(error)) as caught:
            train(monkeypatch, [error])
        assert caught.value is error


def test_a_job_that_is_not_elastic_goes_back_when_the_program_asks_for_it() -> None:
    state = Recorded()
    outcomes: list[Any] = [HorovodInternalError(), HostsUpdatedInterrupt(), 5]

    @run
    def function(given: State) -> int:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return int(outcome)

    assert function(state) == 5
    assert state.calls == ["sync", "restore", "reset", "sync", "reset", "sync"]
    with pytest.raises(ValueError, match="mine"):
        run(lambda given: (_ for _ in ()).throw(ValueError("mine")))(state)
    assert type(loop.present_recovery()) is Recovery


@pytest.mark.parametrize("over, kind", [(False, ElasticRecovery), (True, Recovery)])
def test_a_worker_that_was_told_to_leave_does_not_train_alone(
    monkeypatch: pytest.MonkeyPatch, over: bool, kind: type
) -> None:
    """Whether it is a member yet or not; ranks stay together only after elastic.run has ended."""
    link = types.SimpleNamespace(dismissed=Dismissed(0, "the training is over"))
    process = types.SimpleNamespace(
        link=link, record=object(), over=over, worker=NO_MEMORY, is_here=True
    )
    monkeypatch.setattr(processes, "_started", process)
    assert type(loop.present_recovery()) is kind


def test_ranks_wait_once_in_a_generation_for_the_reset_callbacks_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second elastic.run there is a mistake that the others have to see."""
    waits: list[int] = []
    link = types.SimpleNamespace(synced=lambda *position: None)
    process = types.SimpleNamespace(
        link=link, generation=1, reset_ended=0, position=None, record=object(), worker=NO_MEMORY
    )
    monkeypatch.setattr(recovery, "_end_reset", lambda: waits.append(process.generation))
    monkeypatch.setattr(recovery, "_failed_steps", lambda: (0, 0))
    for process.generation in (1, 2, 2, 4):
        ElasticRecovery(process).sync(Recorded())  # type: ignore[arg-type]
    assert waits == [2, 4]


def test_a_reset_callback_that_wants_another_reset_gets_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The others may be in a collective of this generation, so it ends as by a failure."""
    process = types.SimpleNamespace(generation=2, worker=NO_MEMORY)
    job = ElasticRecovery(process)  # type: ignore[arg-type]
    failures: list[State] = []
    monkeypatch.setattr(job, "after_failure", failures.append)
    state = Recorded()
    job.at_boundary(state)
    assert failures == [state]
