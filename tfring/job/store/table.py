"""Keys and values of a store, and what its operations mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from tfring.job.store.errors import StoreLimitError, StoreValueError

_LARGEST = (1 << 63) - 1
# Longer than any number of 64 bits.
_LONGEST_NUMBER = 24


class Limits(NamedTuple):
    """How much a store takes."""

    key_bytes: int = 1024  # longest key, as UTF-8
    value_bytes: int = 16 << 20  # longest value
    keys: int = 100_000  # number of keys
    total_bytes: int = 256 << 20  # all keys and values together


class Change(NamedTuple):
    """A change of a key, as a watch returns it."""

    key: str
    value: bytes | None  # its new value; None: it was deleted
    # Number of the change. Later changes of a store have higher numbers; a deletion that a watch
    # has missed has that of the newest change when it learned of it.
    revision: int


class Entry(NamedTuple):
    """A value in a table, the number of the change that set it, and whose presence it needs."""

    value: bytes
    revision: int
    owner: Any = None


class Table:
    """Keys and values with revisions, with the operations of a `Store`.

    Not thread-safe: its owner holds a lock around each operation. StoreLimitError: a key or a value
    is too long, or the table is full.
    """

    def __init__(self, changed: Callable[[Change], None], limits: Limits | None = None) -> None:
        """Makes an empty table, which calls `changed` after every change."""
        self.limits = limits or Limits()
        self.revision = 0
        self._changed = changed
        self._entries: dict[str, Entry] = {}
        self._bytes = 0

    def find(self, key: str) -> bytes | None:
        """Returns the value of a key, or None if it does not exist."""
        check_key(key, self.limits)
        entry = self._entries.get(key)
        return None if entry is None else entry.value

    def check(self, keys: Iterable[str]) -> bool:
        """Whether all keys exist."""
        return all(self.find(key) is not None for key in keys)

    def count(self, prefix: str = "") -> int:
        """Returns the number of keys that begin with a prefix."""
        return len(self.matching(prefix)) if prefix else len(self._entries)

    def matching(self, prefix: str) -> list[Change]:
        """Returns the state of all keys that begin with a prefix, the oldest change first."""
        found = [
            Change(key, entry.value, entry.revision)
            for key, entry in self._entries.items()
            if key.startswith(prefix)
        ]
        return sorted(found, key=lambda change: change.revision)

    def set(self, key: str, value: bytes, owner: Any = None) -> None:
        """Sets a key, which goes with the end of its owner: see delete_owned()."""
        self._check(key, value)
        self._put(key, value, owner)

    def append(self, key: str, value: bytes) -> None:
        """Adds bytes to the end of a key's value; sets it where the key does not exist."""
        old = self._entries.get(key)
        value = (b"" if old is None else old.value) + value
        self._check(key, value)
        self._put(key, value, None if old is None else old.owner)

    def add(self, key: str, amount: int) -> int:
        """Adds to a whole number, 0 where the key does not exist, and returns the sum.

        StoreValueError: the value is no whole number, or the sum has more than 64 bits.
        """
        old = self._entries.get(key)
        try:
            total = amount + (0 if old is None else int(old.value[:_LONGEST_NUMBER]))
        except ValueError:
            raise StoreValueError(
                f'add("{key}", {amount}): its value is no whole number ({_shown(old)})'
            ) from None
        if not -_LARGEST - 1 <= total <= _LARGEST:
            raise StoreValueError(f'add("{key}", {amount}): {total} has more than 64 bits')
        value = b"%d" % total
        self._check(key, value)
        self._put(key, value, None if old is None else old.owner)
        return total

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Sets a key if it has the expected value, or does not exist and none is expected.

        Returns the value afterwards; `expected` where the key does not exist.
        """
        old = self._entries.get(key)
        if old is None and expected:
            return expected
        if old is not None and old.value != expected:
            return old.value
        self._check(key, desired)
        self._put(key, desired, None if old is None else old.owner)
        return desired

    def delete(self, key: str) -> bool:
        """Deletes a key; returns whether it existed."""
        if self.find(key) is None:
            return False
        self._drop(key)
        return True

    def delete_owned(self, owner: Any) -> None:
        """Deletes all keys of an owner, which has ended."""
        for key in [key for key, entry in self._entries.items() if entry.owner is owner]:
            self._drop(key)

    def _put(self, key: str, value: bytes, owner: Any) -> None:
        self._bytes += len(value) - self._size_of(key) + len(key.encode())
        self.revision += 1
        self._entries[key] = Entry(value, self.revision, owner)
        self._changed(Change(key, value, self.revision))

    def _drop(self, key: str) -> None:
        self._bytes -= self._size_of(key)
        self.revision += 1
        del self._entries[key]
        self._changed(Change(key, None, self.revision))

    def _size_of(self, key: str) -> int:
        entry = self._entries.get(key)
        return 0 if entry is None else len(key.encode()) + len(entry.value)

    def _check(self, key: str, value: bytes) -> None:
        check_key(key, self.limits)
        if len(value) > self.limits.value_bytes:
            raise StoreLimitError(
                f'the value for the key "{key}" has {len(value)} bytes, and the longest that a '
                f"store takes has {self.limits.value_bytes}: keep large data elsewhere"
            )
        if key not in self._entries and len(self._entries) >= self.limits.keys:
            raise StoreLimitError(
                f'no place for the key "{key}": the store has {len(self._entries)} keys, as many '
                "as it takes: delete those that nobody needs"
            )
        total = self._bytes - self._size_of(key) + len(key.encode()) + len(value)
        if total > self.limits.total_bytes:
            raise StoreLimitError(
                f'no place for the key "{key}": the store would have {total} bytes, and takes '
                f"{self.limits.total_bytes}: delete what nobody needs"
            )


def check_key(key: str, limits: Limits) -> None:
    """Raises StoreLimitError, TypeError or UnicodeEncodeError if a text cannot be a key."""
    if not isinstance(key, str):
        raise TypeError(f"a key is a str, and {key!r} is a {type(key).__name__}")
    size = len(key.encode())
    if not 0 < size <= limits.key_bytes:
        raise StoreLimitError(
            f'a key has {size} bytes, and may have from 1 to {limits.key_bytes}: "{key[:64]}"'
        )


def _shown(entry: Entry | None) -> str:
    return repr(entry.value[:32]) if entry is not None else "it does not exist"
