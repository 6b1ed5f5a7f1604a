"""Copies of commits that a worker sends to one on a second host, here in one process."""

from __future__ import annotations

import logging
import os
import queue
import socket
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from launcher_tools import LIMIT_SECONDS, wait_until

from tfring.elastic import copy_transfer
from tfring.elastic.commit_memory import CommitMemory, CopyHead
from tfring.elastic.copies import Copied, Copies
from tfring.elastic.copy_transfer import CopyReceiver, CopySender, may_come
from tfring.job.environments.elastic import ElasticWorker, make_memory
from tfring.job.handshake.errors import UnreachableError
from tfring.job.handshake.listener import bind
from tfring.job.store import StoreError, TCPStore

# More than one piece of a message.
LARGE = os.urandom((1 << 20) + 5)


class Waiting:
    """A worker on some host that waits to be taken in."""

    def __init__(self, worker: ElasticWorker) -> None:
        self.came: queue.Queue[CopyHead | None] = queue.Queue()
        self.memory = CommitMemory(worker.memory)
        self.receiver = CopyReceiver(worker, self.came.put)

    def kept(self) -> list[bytes] | None:
        with self.memory.reading() as found:
            return None if found is None else [bytes(part) for part in found[1]]


@pytest.fixture
def worker_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ElasticWorker]]:
    """Makes a worker on a host, with memory of its own."""
    monkeypatch.setenv("TFRING_SECRET", "only for this test " * 4)
    store = TCPStore("localhost", 0, is_master=True)
    files: list[int] = []

    def made(worker: int, host: str) -> ElasticWorker:
        memory = make_memory()
        files.extend(memory)
        return ElasticWorker(worker, "localhost", store.port, host, 0, False, memory)

    yield made
    store.close()
    for file in files:
        os.close(file)


def send(sender: CopySender, commit: int, *parts: bytes) -> CopyHead:
    head = CopyHead(1, 77, commit, commit, 5)
    sender.send(head, [len(part) for part in parts], parts)
    return head


def test_who_waits_on_another_host_gets_them(worker_of: Any) -> None:
    sender = CopySender(worker_of(1, "a"))
    send(sender, 1, b"nobody waits")
    beside, there = Waiting(worker_of(2, "a")), Waiting(worker_of(3, "b"))
    assert wait_until(lambda: send(sender, 2, b"", LARGE, b"end") and not there.came.empty())
    assert there.kept() == [b"", LARGE, b"end"]
    head = send(sender, 3, b"next")
    assert there.kept() == [b"next"]  # send has waited for it
    assert [there.came.get() for _ in range(there.came.qsize())][-1] == head
    assert beside.kept() is None and beside.came.empty()
    sender.close(free=True)
    assert there.kept() is None and there.came.get(timeout=LIMIT_SECONDS) is None
    for one in (beside, there):
        one.receiver.close()


def test_who_waits_is_taken_in_or_ends(worker_of: Any) -> None:
    """Training goes on, and the next worker gets the next commit."""
    sender = CopySender(worker_of(1, "a"))
    first = Waiting(worker_of(2, "b"))
    assert wait_until(lambda: send(sender, 1, b"one") and not first.came.empty())
    first.receiver.close()
    send(sender, 2, b"two")
    second = Waiting(worker_of(3, "b"))
    assert wait_until(lambda: send(sender, 3, b"three") and not second.came.empty())
    assert first.kept() == [b"one"] and second.kept() == [b"three"]
    sender.close(free=False)
    second.receiver.close()
    assert second.kept() == [b"three"]


def test_a_copy_that_breaks_off_does_not_count(worker_of: Any) -> None:
    """As when its sender is killed; the next copy replaces it."""
    sender = CopySender(worker_of(1, "a"))
    there = Waiting(worker_of(2, "b"))
    assert wait_until(lambda: send(sender, 1, b"one") and not there.came.empty())

    def pieces() -> Iterator[bytes]:
        yield b"tw"
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        sender.send(CopyHead(1, 77, 2, 2, 5), [3], pieces())
    sender.close(free=False)
    assert wait_until(lambda: there.kept() == [b"one"])
    following = CopySender(worker_of(4, "a"))
    assert wait_until(lambda: send(following, 3, b"three") and there.kept() == [b"three"])
    following.close(free=False)
    there.receiver.close()


def test_a_head_that_cannot_be_read(worker_of: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The worker says so, and takes the copies of the next sender."""
    wrong, there = CopySender(worker_of(1, "a")), Waiting(worker_of(2, "b"))
    no_head: Any = 5
    assert wait_until(lambda: wrong.send(no_head, [1], [b"x"]) or "TypeError" in caplog.text)
    assert "a copy of a commit cannot be taken" in caplog.text
    wrong.close(free=False)
    following = CopySender(worker_of(3, "a"))
    assert wait_until(lambda: send(following, 1, b"one") and there.kept() == [b"one"])
    following.close(free=False)
    there.receiver.close()


def test_who_cannot_be_reached_is_tried_again(
    worker_of: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried = []

    def no_way(*_: Any) -> Any:
        tried.append(True)
        raise UnreachableError("no way", rank=0)

    monkeypatch.setattr(copy_transfer, "_AGAIN_SECONDS", 1000.0)
    sender, there = CopySender(worker_of(1, "a")), Waiting(worker_of(2, "b"))
    with monkeypatch.context() as patched:
        patched.setattr(copy_transfer, "connect", no_way)
        assert wait_until(lambda: send(sender, 1, b"one") and tried)
        before = len(tried)
        send(sender, 2, b"two")
        assert len(tried) == before  # it is too early
        sender._later[2] = 0.0
        send(sender, 3, b"three")
        assert len(tried) > before
    assert caplog.text.count("worker 2 cannot be reached") == 1
    sender._later[2] = 0.0
    send(sender, 4, b"four")
    assert there.kept() == [b"four"]
    sender.close(free=False)
    there.receiver.close()


def test_nothing_stays_open_without_the_store(
    worker_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_store(*_: Any, **__: Any) -> None:
        raise StoreError("gone")

    bound: list[socket.socket] = []
    worker, real = worker_of(1, "a"), copy_transfer.bind
    monkeypatch.setattr(copy_transfer, "bind", lambda *a: bound.append(real(*a)) or bound[0])
    for name in ("set", "__init__"):
        bound.clear()
        with monkeypatch.context() as patched:
            patched.setattr(TCPStore, name, no_store)
            with pytest.raises(StoreError, match="gone"):
                CopyReceiver(worker, lambda _: None)
        assert bound[0].fileno() == -1


@pytest.mark.parametrize(
    ("store", "advertised", "expected"),
    [
        ("192.0.2.7", "", True),
        ("127.0.0.1", "", True),  # for a worker beside the launcher; others have another address
        ("localhost", "", False),
        ("192.0.2.7", "192.0.2.8", True),
        ("192.0.2.7", "192.0.2.8:31000", False),
    ],
)
def test_copies_may_come(
    worker_of: Any, monkeypatch: pytest.MonkeyPatch, store: str, advertised: str, expected: bool
) -> None:
    monkeypatch.setenv("TFRING_ADVERTISE_ADDR", advertised)
    assert may_come(worker_of(1, "a")._replace(store_host=store)) is expected


class State:
    """The parts of a state that a waiting worker needs."""

    def _describe(self) -> list[str]:
        return []


def test_a_worker_that_waits_gives_its_port_back(
    worker_of: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Because the rank may need it if the range has one port for each."""
    with bind("", 0, 1) as sock:
        port = sock.getsockname()[1]
    monkeypatch.setenv("TFRING_PORT_RANGE", f"{port}-{port}")
    process: Any = SimpleNamespace(
        worker=worker_of(1, "a")._replace(store_host="127.0.0.1"),
        link=SimpleNamespace(committed=lambda position: None),
    )
    copies, state = Copies(process), cast(Copied, State())
    with copies.waiting(state), pytest.raises(OSError, match="in use"):
        bind("", 0, 1)
    caplog.set_level(logging.DEBUG, "tfring")
    with bind("", 0, 1), copies.waiting(state):
        assert [
            one.levelname for one in caplog.records if "no commits of other hosts" in one.message
        ] == ["DEBUG"]
    copies.end()
