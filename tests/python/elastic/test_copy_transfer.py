"""Copies of commits that go from a worker to one on another host, here in one process."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from launcher_tools import LIMIT_SECONDS, wait_until

from tfring.elastic.commit_memory import CommitMemory, CopyHead
from tfring.elastic.copy_transfer import CopyReceiver, CopySender
from tfring.environments.elastic import ElasticWorker, make_memory
from tfring.store import TCPStore

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
    """Training goes on, and the next one gets the next commit."""
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
    """As when its sender is killed; another one takes its place."""
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


def test_an_address_with_a_port_is_that_of_the_rank(
    worker_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFRING_ADVERTISE_ADDR", "127.0.0.1:9")
    sender, there = CopySender(worker_of(1, "a")), Waiting(worker_of(2, "b"))
    assert wait_until(lambda: send(sender, 1, b"one") and not there.came.empty())
    sender.close(free=False)
    there.receiver.close()
