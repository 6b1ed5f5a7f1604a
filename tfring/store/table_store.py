"""What stores have in common that keep a table in this process."""

from __future__ import annotations

import abc
import contextlib
import time
from collections.abc import Callable, Sequence

from tfring.store.errors import StoreError, StoreWatchError
from tfring.store.store import (
    DEFAULT_TIMEOUT,
    Store,
    as_bytes,
    deadline_after,
    key_list,
    missing_error,
)
from tfring.store.table import Change, Table
from tfring.store.watch import Watch


class TableStore(Store):
    """A store whose operations are those of a `Table`, each under a lock."""

    def __init__(self, timeout: float = DEFAULT_TIMEOUT) -> None:
        """As for `Store`."""
        super().__init__(timeout)
        # Added to under the lock of _locked(); a watch that is closed is taken out at any time.
        self._watches: list[Watch] = []

    @abc.abstractmethod
    def _where(self) -> str:
        """Returns what the store is, for messages."""

    @abc.abstractmethod
    def _locked(self, deadline: float) -> contextlib.AbstractContextManager[Table]:
        """Locks the table, brings it up to date, and keeps what changes in it."""

    @abc.abstractmethod
    def _wait_beyond(self, revision: int, deadline: float) -> None:
        """Waits until the table has another revision, or may have one, or the deadline."""

    def _poll(self) -> Callable[[float], None] | None:
        """Returns what looks for changes that others made; None: there are no others."""
        return None

    def _tell(self, change: Change) -> None:
        for watch in list(self._watches):
            watch.put(change)

    def set(
        self, key: str, value: bytes | str, *, ephemeral: bool = False, timeout: float | None = None
    ) -> None:
        """See `Store.set`."""
        if ephemeral:
            raise StoreError(
                f'{self._where()}: the key "{key}" cannot be ephemeral: this store has no '
                "connections that could end; a TCPStore has"
            )
        with self._locked(deadline_after(self._limit(timeout))) as table:
            table.set(key, as_bytes(value))

    def get(self, key: str, timeout: float | None = None) -> bytes:
        """See `Store.get`."""
        value: bytes | None = None

        def found(table: Table) -> list[str]:
            nonlocal value
            value = table.find(key)
            return [key] if value is None else []

        self._wait_until(found, self._limit(timeout))
        assert value is not None
        return value

    def wait(self, keys: Sequence[str], timeout: float | None = None) -> None:
        """See `Store.wait`."""
        wanted = key_list(keys)
        self._wait_until(
            lambda table: [key for key in wanted if not table.check([key])], self._limit(timeout)
        )

    def check(self, keys: Sequence[str], timeout: float | None = None) -> bool:
        """See `Store.check`."""
        with self._locked(deadline_after(self._limit(timeout))) as table:
            return table.check(key_list(keys))

    def add(self, key: str, amount: int, timeout: float | None = None) -> int:
        """See `Store.add`."""
        with self._locked(deadline_after(self._limit(timeout))) as table:
            return table.add(key, amount)

    def compare_set(
        self, key: str, expected: bytes | str, desired: bytes | str, timeout: float | None = None
    ) -> bytes:
        """See `Store.compare_set`."""
        with self._locked(deadline_after(self._limit(timeout))) as table:
            return table.compare_set(key, as_bytes(expected), as_bytes(desired))

    def delete(self, key: str, timeout: float | None = None) -> bool:
        """See `Store.delete`."""
        with self._locked(deadline_after(self._limit(timeout))) as table:
            return table.delete(key)

    def num_keys(self, prefix: str = "", timeout: float | None = None) -> int:
        """See `Store.num_keys`."""
        with self._locked(deadline_after(self._limit(timeout))) as table:
            return table.count(prefix)

    def watch(
        self, prefix: str = "", *, exact: bool = False, timeout: float | None = None
    ) -> Watch:
        """See `Store.watch`."""
        limit = self._limit(timeout)
        watch = Watch(self._where(), prefix, exact, limit, closed=self._forget, poll=self._poll())
        with self._locked(deadline_after(limit)) as table:
            for change in table.matching(prefix):
                watch.put(change)
            self._watches.append(watch)
        return watch

    def _end_watches(self) -> None:
        for watch in list(self._watches):
            watch.fail(StoreWatchError(f"{self._where()} was closed, and its watches with it"))
        self._watches.clear()

    def _forget(self, watch: Watch) -> None:
        with contextlib.suppress(ValueError):
            self._watches.remove(watch)

    def _wait_until(self, missing: Callable[[Table], list[str]], limit: float) -> None:
        deadline = deadline_after(limit)
        while True:
            with self._locked(deadline) as table:
                names = missing(table)
                revision = table.revision
            if not names:
                return
            if time.monotonic() >= deadline:
                raise missing_error(self._where(), names, limit)
            self._wait_beyond(revision, deadline)
