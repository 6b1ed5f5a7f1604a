"""A part of another store."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence

from tfring.job.store.store import Store, Timeout, key_list
from tfring.job.store.table import Change, Limits, check_key
from tfring.job.store.watch import Watch


class PrefixStore(Store):
    """The keys of another store that begin with "prefix/", without that.

    So several users of one store stay apart. Errors name keys as the other store has them.
    """

    def __init__(self, prefix: str, store: Store) -> None:
        """Takes a store, which stays the caller's.

        Args:
            prefix: What all keys begin with, before a slash.
            store: The store that has them.
        """
        super().__init__(store.timeout)
        self._prefix = f"{prefix}/"
        self._store = store

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

    def set(
        self,
        key: str,
        value: bytes | str,
        *,
        ephemeral: bool = False,
        timeout: Timeout | None = None,
    ) -> None:
        """See `Store.set`."""
        self._store.set(self._name(key), value, ephemeral=ephemeral, timeout=timeout)

    def multi_set(
        self, keys: Sequence[str], values: Sequence[bytes | str], timeout: Timeout | None = None
    ) -> None:
        """See `Store.multi_set`."""
        self._store.multi_set(self._names(keys), values, timeout)

    def get(self, key: str, timeout: Timeout | None = None) -> bytes:
        """See `Store.get`."""
        return self._store.get(self._name(key), timeout)

    def multi_get(self, keys: Sequence[str], timeout: Timeout | None = None) -> list[bytes]:
        """See `Store.multi_get`."""
        return self._store.multi_get(self._names(keys), timeout)

    def wait(self, keys: Sequence[str], timeout: Timeout | None = None) -> None:
        """See `Store.wait`."""
        self._store.wait(self._names(keys), timeout)

    def check(self, keys: Sequence[str], timeout: Timeout | None = None) -> bool:
        """See `Store.check`."""
        return self._store.check(self._names(keys), timeout)

    def add(self, key: str, amount: int, timeout: Timeout | None = None) -> int:
        """See `Store.add`."""
        return self._store.add(self._name(key), amount, timeout)

    def append(self, key: str, value: bytes | str, timeout: Timeout | None = None) -> None:
        """See `Store.append`."""
        self._store.append(self._name(key), value, timeout)

    def compare_set(
        self, key: str, expected: bytes | str, desired: bytes | str, timeout: Timeout | None = None
    ) -> bytes:
        """See `Store.compare_set`."""
        return self._store.compare_set(self._name(key), expected, desired, timeout)

    def delete_key(self, key: str, timeout: Timeout | None = None) -> bool:
        """See `Store.delete_key`."""
        return self._store.delete_key(self._name(key), timeout)

    def num_keys(self, prefix: str = "", timeout: Timeout | None = None) -> int:
        """See `Store.num_keys`."""
        return self._store.num_keys(self._prefix + prefix, timeout)

    def watch(
        self, prefix: str = "", *, exact: bool = False, timeout: Timeout | None = None
    ) -> Watch:
        """See `Store.watch`."""
        return _PrefixWatch(
            self._prefix, self._store.watch(self._prefix + prefix, exact=exact, timeout=timeout)
        )

    def close(self) -> None:
        """Does nothing: the other store is its owner's to close."""

    def secret(self) -> str | None:
        """See `Store.secret`."""
        return self._store.secret()

    def _name(self, key: str) -> str:
        check_key(key, Limits())
        return self._prefix + key

    def _names(self, keys: Sequence[str]) -> list[str]:
        return [self._name(key) for key in key_list(keys)]


class _PrefixWatch(Watch):
    """A watch of another store whose keys lose their prefix."""

    def __init__(self, prefix: str, watch: Watch) -> None:
        self._prefix = prefix
        self._watch = watch

    def next(self, timeout: float | None = None) -> Change:
        change = self._watch.next(timeout)
        return change._replace(key=change.key[len(self._prefix) :])

    def take(self) -> Change | None:
        change = self._watch.take()
        return change and change._replace(key=change.key[len(self._prefix) :])

    def on_ready(self, call: Callable[[], None]) -> None:
        self._watch.on_ready(call)

    def close(self) -> None:
        self._watch.close()
