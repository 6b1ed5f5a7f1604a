"""A store that a program brings itself instead of a TCPStore: in memory, for threads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

from tfring.job.store import (
    Change,
    Store,
    StoreConnectionError,
    StoreTimeoutError,
    StoreWatchError,
    Timeout,
    Watch,
)
from tfring.job.store.store import as_bytes
from tfring.job.store.table import Table


class OwnStore(Store):
    """The methods that a job needs of a store through which its ranks meet."""

    def __init__(self, secret: str | None = "") -> None:
        super().__init__()
        self._secret = secret
        self._condition = threading.Condition()  # guards all below
        self._table = Table(self._changed)
        self._watches: list[Watch] = []
        self._closed = False

    def secret(self) -> str | None:
        return self._secret

    def set(
        self,
        key: str,
        value: bytes | str,
        *,
        ephemeral: bool = False,
        timeout: Timeout | None = None,
    ) -> None:
        with self._open() as table:
            table.set(key, as_bytes(value))

    def get(self, key: str, timeout: Timeout | None = None) -> bytes:
        self.wait([key], timeout)
        with self._open() as table:
            value = table.find(key)
        assert value is not None
        return value

    def wait(self, keys: Sequence[str], timeout: Timeout | None = None) -> None:
        with self._open() as table:
            limit = self._limit(timeout)
            self._condition.wait_for(lambda: self._closed or table.check(keys), limit)
        with self._open() as table:
            if not table.check(keys):
                raise StoreTimeoutError(f"{keys} were not set")

    def compare_set(
        self, key: str, expected: bytes | str, desired: bytes | str, timeout: Timeout | None = None
    ) -> bytes:
        with self._open() as table:
            return table.compare_set(key, as_bytes(expected), as_bytes(desired))

    def delete_key(self, key: str, timeout: Timeout | None = None) -> bool:
        with self._open() as table:
            return table.delete(key)

    def num_keys(self, prefix: str = "", timeout: Timeout | None = None) -> int:
        with self._open() as table:
            return table.count(prefix)

    def watch(self, prefix: str = "", *, timeout: Timeout | None = None) -> Watch:
        watch = Watch("the own store", prefix, self._limit(timeout))
        with self._open() as table:
            for change in table.matching(prefix):
                watch.put(change)
            self._watches.append(watch)
        return watch

    def close(self) -> None:
        with self._condition:
            self._closed = True
            for watch in self._watches:
                watch.fail(StoreWatchError("the own store was closed"))
            self._condition.notify_all()

    @contextlib.contextmanager
    def _open(self) -> Iterator[Table]:
        with self._condition:
            if self._closed:
                raise StoreConnectionError("the own store was closed")
            yield self._table

    def _changed(self, change: Change) -> None:
        for watch in self._watches:
            watch.put(change)
        self._condition.notify_all()
