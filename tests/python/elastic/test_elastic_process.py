"""How a worker of an elastic job joins, with a fake link and a fake bootstrap."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
from store_tools import LIMIT, SECRET, Wire

pytest.importorskip("tfring.runtime._native")

from tfring.elastic import process as elastic_process
from tfring.elastic.errors import Dismissed, GenerationEnded
from tfring.elastic.process import ElasticProcess
from tfring.elastic.records import Member, Position, Record
from tfring.job.bootstrap.cancel import Cancel
from tfring.job.environments import Identity, Rendezvous
from tfring.job.environments.elastic import ElasticWorker
from tfring.job.handshake.errors import BootstrapError
from tfring.job.store import Store, StoreConnectionError, TCPStore
from tfring.job.store.tcp import connection

WORKER = ElasticWorker(7, "localhost", 4000, "a", 2, True)


class MadeUpStore:
    def __init__(self, *where: Any, **options: float) -> None:
        self.timeout, self.closed = 1.0, False
        self._connection, self._prefix = None, ""  # what a PrefixStore of it takes

    def cut(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


class MadeUpLink:
    """The coordinator's messages are in `records` and `goes`, the worker's in `heard`."""

    def __init__(
        self, store: Any, worker: int, host: str, slot: int, *, on_abandon: Any, options: Any
    ) -> None:
        assert (worker, host, slot) == (7, "a", 2)
        self.on_abandon = on_abandon
        self.heard: list[Any] = []
        self.records: list[Record | Dismissed] = []
        self.goes: list[Exception | None] = []
        self.dismissed: Dismissed | None = None
        self.answers: list[bool] = []
        self.silent = False
        self.ended = 0

    def abandon(self, generation: int) -> None:
        self.ended = generation
        self.on_abandon(generation)

    def may_publish(self) -> bool:
        return self.answers.pop(0)

    def ready(self) -> None:
        self.heard.append("ready")

    def next_record(self) -> Record:
        record = self.records.pop(0)
        if isinstance(record, Dismissed):
            self.dismissed = record
            raise record
        return record

    def connected(self, generation: int) -> None:
        self.heard.append(("connected", generation))

    def wait_go(self, generation: int) -> None:
        outcome = self.goes.pop(0) if self.goes else None
        if outcome is not None:
            raise outcome

    def failed(self, generation: int, suspect: int = 0) -> None:
        self.heard.append(("failed", generation))

    def stopped(self, generation: int, position: Position, **how: bool) -> None:
        self.heard.append(("stopped", generation, tuple(position)))


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(elastic_process, "TCPStore", MadeUpStore)
    monkeypatch.setattr(elastic_process, "WorkerLink", MadeUpLink)
    made: Any = ElasticProcess(WORKER, begins(), lambda why, wait=True: None)
    return made


def record(generation: int, workers: list[int] | None = None) -> Record:
    members = tuple(Member(worker, "a", worker) for worker in workers or [3, 7, 9])
    return Record(generation, 5, members, 0, Position())


def begins(*outcomes: Any) -> Callable[[Identity, Store, Cancel], None]:
    """A bootstrap that does these things, one per generation."""
    left = list(outcomes)

    def begin(identity: Identity, store: Store, cancel: Cancel) -> None:
        outcome = left.pop(0)
        if callable(outcome):
            outcome(identity, cancel)
        elif outcome is not None:
            raise outcome

    return begin


def joins(process: Any, begin: Callable[[Identity, Store, Cancel], None]) -> Record:
    """Joins with another bootstrap."""
    process._begin = begin
    joined: Record = process.join()
    return joined


def test_rank_and_size_come_from_the_record(process: Any) -> None:
    seen: list[Identity] = []
    process.link.records = [record(4), record(6, [7])]
    begin = begins(*[lambda identity, cancel: seen.append(identity)] * 2)
    assert not process.in_generation
    joins(process, begin)
    assert (process.generation, process.in_generation) == (4, True)
    joins(process, begin)
    assert [(one.rank, one.size, one.rendezvous) for one in seen] == [
        (1, 3, Rendezvous.STORE),
        (0, 1, Rendezvous.NONE),
    ]
    assert process.link.heard == ["ready", ("connected", 4), ("connected", 6)]


def test_a_generation_that_fails_is_followed_by_the_next(process: Any) -> None:
    process.position = Position(3, 9)
    process.link.records = [record(number) for number in range(1, 5)]
    process.link.goes = [GenerationEnded(3), None]
    joined = joins(process, begins(BootstrapError("lost"), OSError("lost"), None, None))
    assert joined.generation == 4
    assert process.link.heard == [
        "ready",
        ("failed", 1),
        ("stopped", 1, (3, 9)),
        ("failed", 2),
        ("stopped", 2, (3, 9)),
        ("connected", 3),
        ("failed", 3),
        ("stopped", 3, (3, 9)),
        ("connected", 4),
    ]


def test_what_fails_three_times_by_itself_is_an_error(process: Any) -> None:
    process.link.records = [record(number) for number in range(1, 9)]
    errors = [BootstrapError(f"fails {n}") for n in range(3)]
    with pytest.raises(BootstrapError, match="fails 2"):
        joins(process, begins(*errors))
    assert process.link.heard[-2:] == [("failed", 3), ("stopped", 3, (0, 0))]

    def ends(identity: Identity, cancel: Cancel) -> None:  # the coordinator ends it meanwhile
        process.link.abandon(generations.pop(0))
        assert cancel.is_set()
        raise BootstrapError("cancelled")

    generations = [4, 5, 6, 7]
    joins(process, begins(*[ends] * 4, None))
    assert process.generation == 8


def test_a_generation_that_ended_before_it_was_begun(process: Any) -> None:
    process.link.records = [record(2), record(3)]
    process.link.abandon(2)
    seen: list[bool] = []

    def see(identity: Identity, cancel: Cancel) -> None:
        seen.append(cancel.is_set())
        if cancel.is_set():
            raise BootstrapError("cancelled")

    joins(process, begins(see, see))
    assert seen == [True, False] and process.generation == 3


def test_what_an_older_generation_has_saved_does_not_appear(process: Any) -> None:
    process.link.records = [record(2), record(3)]
    joins(process, begins(None))
    process.link.answers = [False, False, True]  # the coordinator does not answer yet
    assert process.may_publish(2) and process.link.answers == []
    process.link.abandon(2)
    assert not process.may_publish(2)
    joins(process, begins(None))
    assert not process.may_publish(2)
    process.link.answers = [True]
    assert process.may_publish(3)


@pytest.mark.parametrize("away", [False, True])
def test_without_an_answer_nothing_appears(
    process: Any, monkeypatch: pytest.MonkeyPatch, away: bool
) -> None:
    process.link.silent = away
    if not away:
        monkeypatch.setattr(elastic_process, "_PUBLISH_SECONDS", 0.0)
    process.link.records = [record(1)]
    joins(process, begins(None))
    process.link.answers = [False]
    assert not process.may_publish(1)


def test_another_error_leaves_and_is_told(process: Any) -> None:
    process.link.records = [record(1)]
    with pytest.raises(KeyboardInterrupt):
        joins(process, begins(KeyboardInterrupt()))
    assert process.link.heard == ["ready", ("failed", 1), ("stopped", 1, (0, 0))]


def test_a_dismissal_ends_the_process(process: Any) -> None:
    process.leave_if_dismissed()
    process.link.records = [Dismissed(76, "nobody answers")]
    with pytest.raises(Dismissed) as caught:
        joins(process, begins())
    for leave in (process.leave_if_dismissed, lambda: process.leave(caught.value)):
        with pytest.raises(SystemExit) as exited:
            leave()
        assert exited.value.code == 76
    assert not process.in_generation


def test_a_signal_that_comes_late_does_not_kill_a_process_that_leaves(process: Any) -> None:
    """If the program handles the signal; a signal that it does not handle still kills."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        for handler, after in ((print, signal.SIG_IGN), (signal.SIG_DFL, signal.SIG_DFL)):
            signal.signal(signal.SIGTERM, handler)
            with pytest.raises(SystemExit):
                process.leave(Dismissed(0, "it leaves the job"))
            assert signal.getsignal(signal.SIGTERM) is after
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_link_s_thread_waits_for_no_silent_store(
    process: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must send heartbeats while a generation is given up."""
    monkeypatch.setattr(connection, "_GOODBYE_SECONDS", 10 * LIMIT)
    process.link.records = [record(1), record(2)]
    server = TCPStore("localhost", 0, is_master=True, secret=SECRET)
    with server, Wire(server.port) as wire:
        monkeypatch.setattr(process, "_connect", lambda: TCPStore(*wire.address, secret=SECRET))

        def uses(identity: Identity, store: Store, cancel: Cancel) -> None:
            store.set("here", b"")

        def waits(identity: Identity, store: Store, cancel: Cancel) -> None:
            wire.lose_answers()
            link = threading.Thread(target=process.link.on_abandon, args=(1,), daemon=True)
            link.start()
            with pytest.raises(StoreConnectionError):
                store.get("never", LIMIT)
            link.join(LIMIT)
            assert not link.is_alive()
            wire.cut()  # the next connection is heard again
            raise BootstrapError("cancelled")

        steps = [waits, uses]
        joins(process, lambda *given: steps.pop(0)(*given))
        assert process.generation == 2
        process._close_records()
