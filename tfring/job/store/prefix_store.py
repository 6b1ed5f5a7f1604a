"""A part of another store."""

from __future__ import annotations

import datetime

from tfring.job.store.store import Store, Timeout


class PrefixStore(Store):
    """The keys of another store that begin with "prefix/", without that.

    So several users of one store stay apart. Errors name keys as the other store has them.
    """

    def __init__(self, prefix: str, store: Store) -> None:
        """Takes a store, which stays the caller's, and what all keys begin with, before a slash."""
        super().__init__(store.timeout)
        self._store = store
        self._connection = store._connection
        self._prefix = f"{store._prefix}{prefix}/"

    @property
    def timeout(self) -> datetime.timedelta:
        """See `Store.timeout`; it is the other store's."""
        return self._store.timeout

    def set_timeout(self, timeout: Timeout) -> None:
        """See `Store.set_timeout`; it is the other store's."""
        self._store.set_timeout(timeout)

    @property
    def underlying_store(self) -> Store:
        """The store that has the keys."""
        return self._store

    def close(self) -> None:
        """Does nothing: the other store is its owner's to close."""

    def secret(self) -> str | None:
        """See `Store.secret`."""
        return self._store.secret()
