"""A store for the threads of one process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

from tfring.job.store.errors import StoreConnectionError, StoreError, StoreWatchError
from tfring.job.store.store import (
    DEFAULT_TIMEOUT,
    Store,
    Timeout,
    as_bytes,
    key_list,
    missing_error,
)
from tfring.job.store.table import Change, Limits, Table
from tfring.job.store.watch import Watch

_WHERE = "the HashStore"


class HashStore(Store):
    """A store in the memory of this process, for its threads."""

    def __init__(self, timeout: Timeout = DEFAULT_TIMEOUT, *, limits: Limits | None = None) -> None:
        """Makes an empty store.

        Args:
            timeout: How long an operation waits by default.
            limits: How much the store takes.

        Raises:
            ValueError: The timeout is not a finite time above 0.
        """
        super().__init__(timeout)
        self._condition = threading.Condition()  # guards all below
        self._table = Table(self._changed, limits)
        self._watches: list[Watch] = []
        self._closed = False

    def set(
        self,
        key: str,
        value: bytes | str,
        *,
        ephemeral: bool = False,
        timeout: Timeout | None = None,
    ) -> None:
        """See `Store.set`."""
        if ephemeral:
            raise StoreError(
                f'{_WHERE}: the key "{key}" cannot be ephemeral: this store has no connections '
                "that could end; a TCPStore has"
            )
        with self._open() as table:
            table.set(key, as_bytes(value))

    def get(self, key: str, timeout: Timeout | None = None) -> bytes:
        """See `Store.get`."""
        return self.multi_get([key], timeout)[0]

    def multi_get(self, keys: Sequence[str], timeout: Timeout | None = None) -> list[bytes]:
        """See `Store.multi_get`."""
        names, limit = key_list(keys), self._limit(timeout)
        with self._open() as table:
            patience = min(limit, threading.TIMEOUT_MAX)
            self._condition.wait_for(lambda: self._closed or table.check(names), patience)
        with self._open() as table:
            values = {name: table.find(name) for name in names}
        found = [value for value in values.values() if value is not None]
        if len(found) < len(values):
            missing = [name for name, value in values.items() if value is None]
            raise missing_error(_WHERE, missing, limit)
        return found

    def wait(self, keys: Sequence[str], timeout: Timeout | None = None) -> None:
        """See `Store.wait`."""
        self.multi_get(keys, timeout)

    def check(self, keys: Sequence[str], timeout: Timeout | None = None) -> bool:
        """See `Store.check`."""
        with self._open() as table:
            return table.check(key_list(keys))

    def add(self, key: str, amount: int, timeout: Timeout | None = None) -> int:
        """See `Store.add`."""
        with self._open() as table:
            return table.add(key, amount)

    def append(self, key: str, value: bytes | str, timeout: Timeout | None = None) -> None:
        """See `Store.append`."""
        with self._open() as table:
            table.append(key, as_bytes(value))

    def compare_set(
        self, key: str, expected: bytes | str, desired: bytes | str, timeout: Timeout | None = None
    ) -> bytes:
        """See `Store.compare_set`."""
        with self._open() as table:
            return table.compare_set(key, as_bytes(expected), as_bytes(desired))

    def delete_key(self, key: str, timeout: Timeout | None = None) -> bool:
        """See `Store.delete_key`."""
        with self._open() as table:
            return table.delete(key)

    def num_keys(self, prefix: str = "", timeout: Timeout | None = None) -> int:
        """See `Store.num_keys`."""
        with self._open() as table:
            return table.count(prefix)

    def watch(
        self, prefix: str = "", *, exact: bool = False, timeout: Timeout | None = None
    ) -> Watch:
        """See `Store.watch`."""
        watch = Watch(_WHERE, prefix, exact, self._limit(timeout), closed=self._forget)
        with self._open() as table:
            for change in table.matching(prefix):
                watch.put(change)
            self._watches.append(watch)
        return watch

    def close(self) -> None:
        """Ends the store: whatever waits gets a StoreConnectionError."""
        with self._condition:
            self._closed = True
            for watch in self._watches:
                watch.fail(StoreWatchError(f"{_WHERE} was closed, and its watches with it"))
            self._watches = []
            self._condition.notify_all()

    def secret(self) -> str:
        """Returns "": what is in this process nobody else can read."""
        return ""

    @contextlib.contextmanager
    def _open(self) -> Iterator[Table]:
        with self._condition:
            if self._closed:
                raise StoreConnectionError(f"{_WHERE} was closed: make a new one")
            yield self._table

    def _changed(self, change: Change) -> None:
        for watch in self._watches:
            watch.put(change)
        self._condition.notify_all()

    def _forget(self, watch: Watch) -> None:
        with self._condition, contextlib.suppress(ValueError):
            self._watches.remove(watch)
