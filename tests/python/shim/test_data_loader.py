"""Horovod's data loaders: batches come in order, errors where they are used, threads end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tfring.horovod.data_loader import AsyncDataLoaderMixin, BaseDataLoader

WAIT = 60.0  # seconds; against hangs only


class Numbers(BaseDataLoader):
    """Counts, and notes how far it has counted, on which thread, and that it has ended."""

    def __init__(self, count: int, fail_at: int = -1) -> None:
        self.count, self.fail_at = count, fail_at
        self.loaded = 0
        self.threads: set[threading.Thread] = set()
        self.ended = threading.Event()

    def __len__(self) -> int:
        return self.count

    def _iterate(self) -> Iterator[int]:
        try:
            for number in range(self.count):
                self.threads.add(threading.current_thread())
                if number == self.fail_at:
                    raise OSError("the disk is gone")
                self.loaded = number + 1
                yield number
        finally:
            self.ended.set()

    def _process_batch(self, batch: Any) -> tuple[int, threading.Thread]:
        return batch, threading.current_thread()


class AsyncNumbers(AsyncDataLoaderMixin, Numbers):
    pass


@pytest.mark.parametrize("queue_size", [0, 1, 3, 64])
def test_batches_come_in_order_and_again(queue_size: int) -> None:
    loader = AsyncNumbers(queue_size, False, 20)
    here = threading.current_thread()
    for _ in range(2):
        assert list(loader) == [(number, here) for number in range(20)]
    assert (here in loader.threads) == (queue_size == 0)
    assert len(loader) == 20 and len(loader.threads) == (1 if queue_size == 0 else 2)
    for thread in loader.threads - {here}:
        thread.join(WAIT)
        assert not thread.is_alive()
    assert list(AsyncNumbers(queue_size, False, 0)) == []


def test_defaults_are_horovods() -> None:
    loader = AsyncNumbers(count=1)
    assert (loader.async_loader_queue_size, loader.debug_data_loader) == (64, False)
    assert [batch for batch, _ in Numbers(3)] == [0, 1, 2]


def test_it_loads_no_further_ahead_than_the_queue_is_long() -> None:
    loader = AsyncNumbers(2, False, 50)
    for batch, _ in loader:
        # One is in use, two wait, and one waits for a place.
        assert loader.loaded <= batch + 4
    assert loader.loaded == 50


@pytest.mark.parametrize("way", ["break", "close", "drop"])
def test_a_loop_that_is_left_early_ends_the_thread(way: str) -> None:
    loader = AsyncNumbers(2, False, 10**9)
    batches = iter(loader)
    assert next(batches)[0] == 0
    if way == "break":
        for _ in batches:
            break
        del batches
    elif way == "close":
        loader._close_async_loader()
        assert list(batches) == []
    else:
        del batches
    assert loader.ended.wait(WAIT)
    assert [batch for (batch, _), _ in zip(loader, range(3), strict=False)] == [0, 1, 2]


def test_an_error_comes_after_the_batches_before_it() -> None:
    loader = AsyncNumbers(8, False, 20, fail_at=3)
    seen = []
    with pytest.raises(OSError, match="the disk is gone"):
        for batch, _ in loader:
            seen.append(batch)
    assert seen == [0, 1, 2]


def test_what_a_subclass_has_to_bring() -> None:
    with pytest.raises(NotImplementedError, match="BaseDataLoader has no _iterate"):
        next(iter(BaseDataLoader()))
    with pytest.raises(NotImplementedError, match="BaseDataLoader has no __len__"):
        len(BaseDataLoader())


def test_debugging_says_when_a_pass_begins(caplog: pytest.LogCaptureFixture) -> None:
    list(AsyncNumbers(5, True, 3))
    assert "AsyncNumbers begins to load, at most 5 batches ahead" in caplog.text
    assert "AsyncNumbers has ended a pass" in caplog.text
