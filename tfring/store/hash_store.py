"""A store for the threads of one process."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from tfring.store.errors import StoreConnectionError
from tfring.store.store import DEFAULT_TIMEOUT
from tfring.store.table import Change, Limits, Table
from tfring.store.table_store import TableStore


class HashStore(TableStore):
    """A store in the memory of this process, for its threads."""

    def __init__(self, timeout: float = DEFAULT_TIMEOUT, *, limits: Limits | None = None) -> None:
        """Makes an empty store.

        Args:
            timeout: Seconds that an operation waits by default.
            limits: How much the store takes.

        Raises:
            ValueError: The timeout is no number of seconds.
        """
        super().__init__(timeout)
        self._condition = threading.Condition()  # guards all below
        self._table = Table(self._changed, limits)
        self._closed = False

    def close(self) -> None:
        """Ends the store: whatever waits gets a StoreConnectionError."""
        with self._condition:
            self._closed = True
            self._end_watches()
            self._condition.notify_all()

    def secret(self) -> str:
        """Returns "": what is in this process nobody else can read."""
        return ""

    def _where(self) -> str:
        return "the HashStore"

    @contextlib.contextmanager
    def _locked(self, deadline: float) -> Iterator[Table]:
        with self._condition:
            if self._closed:
                raise StoreConnectionError(f"{self._where()} was closed: make a new one")
            yield self._table

    def _changed(self, change: Change) -> None:
        self._tell(change)
        self._condition.notify_all()

    def _wait_beyond(self, revision: int, deadline: float) -> None:
        with self._condition:
            self._condition.wait_for(
                lambda: self._closed or self._table.revision != revision,
                max(0.0, deadline - time.monotonic()),
            )
