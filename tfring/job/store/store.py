"""What every store can do."""

from __future__ import annotations

import datetime
import math
import operator
from collections.abc import Sequence

from tfring.job.store.errors import StoreTimeoutError, StoreValueError
from tfring.job.store.table import Limits, check_key
from tfring.job.store.tcp.connection import Connection
from tfring.job.store.tcp.messages import Op
from tfring.job.store.watch import Watch

Timeout = float | datetime.timedelta  # a number is seconds
DEFAULT_TIMEOUT = datetime.timedelta(seconds=300)


class Store:
    """Keys and values that several processes or hosts share.

    Operations have the names and arguments of torch.distributed's stores. Keys are texts of up to
    1024 bytes, values bytes of up to 16 MiB; a str is stored as UTF-8. Every operation happens at
    one moment between its call and its return, and all clients see the operations in the same
    order. All methods may be called from any thread.

    Every operation takes a `timeout`, seconds or a timedelta: how long it waits for the store, and
    for keys; None: the store's own. Every operation can raise:

        StoreTimeoutError: The store did not answer in time, or a key was not set.
        StoreConnectionError: The store is gone or closed.

    Operations that set something can raise, too:

        StoreLimitError: The key or the value is too long, or the store is full.
    """

    # Where keys are, and what they begin with there.
    _connection: Connection
    _prefix = ""

    def __init__(self, timeout: Timeout = DEFAULT_TIMEOUT) -> None:
        """Sets the time limit of operations for which none is given.

        Args:
            timeout: Seconds, or a timedelta.

        Raises:
            ValueError: It is not a finite time above 0.
        """
        self._timeout = seconds_of(timeout)

    @property
    def timeout(self) -> datetime.timedelta:
        """How long an operation waits if it has no timeout of its own."""
        return datetime.timedelta(seconds=self._timeout)

    def set_timeout(self, timeout: Timeout) -> None:
        """Sets how long an operation waits if it has no timeout of its own.

        Args:
            timeout: Seconds, or a timedelta.

        Raises:
            ValueError: It is not a finite time above 0.
        """
        self._timeout = seconds_of(timeout)

    def set(
        self,
        key: str,
        value: bytes | str,
        *,
        ephemeral: bool = False,
        timeout: Timeout | None = None,
    ) -> None:
        """Sets a key, whether it exists or not.

        Args:
            key: The key.
            value: Its value.
            ephemeral: The key goes when this client's connection to the server has been gone for
                longer than its lease, or the client is closed.
            timeout: See the class.
        """
        fields = (self._name(key), as_bytes(value), b"1" if ephemeral else b"")
        self._request(Op.SET, fields, timeout)

    def multi_set(
        self, keys: Sequence[str], values: Sequence[bytes | str], timeout: Timeout | None = None
    ) -> None:
        """Sets several keys in this order. Other clients may see some before the rest is set.

        All are sent before the first is answered.

        Args:
            keys: The keys.
            values: The value of each.
            timeout: See the class.

        Raises:
            ValueError: There are not as many values as keys.
            StoreLimitError: As of `set`. The keys after that one may be set or not.
        """
        names = self._names(keys)
        if len(names) != len(values):
            raise ValueError(f"{len(names)} keys and {len(values)} values: each key needs one")
        several = [(name, as_bytes(value), b"") for name, value in zip(names, values, strict=True)]
        limit = self._limit(timeout)
        if None in self._connection.request_all(Op.SET, several, limit):
            raise self._silent(Op.SET, limit)

    def get(self, key: str, timeout: Timeout | None = None) -> bytes:
        """Returns the value of a key. Waits until the key exists."""
        return self.multi_get([key], timeout)[0]

    def multi_get(self, keys: Sequence[str], timeout: Timeout | None = None) -> list[bytes]:
        """Returns the values of several keys. Waits until all of them exist.

        All are asked for before the first is answered.
        """
        names, limit = self._names(keys), self._limit(timeout)
        found = self._connection.request_all(Op.GET, [(name,) for name in names], limit)
        values = [fields[0] for fields in found if fields is not None]
        if len(values) < len(names):
            missing = [name for name, fields in zip(names, found, strict=True) if fields is None]
            raise self._missing_error(missing, limit)
        return values

    def wait(self, keys: Sequence[str], timeout: Timeout | None = None) -> None:
        """Waits until all keys exist. The error names those that are missing."""
        names, limit = self._names(keys), self._limit(timeout)
        if names and self._connection.request(Op.WAIT, tuple(names), limit) is None:
            raise self._missing_error(self._missing(names), limit)

    def check(self, keys: Sequence[str], timeout: Timeout | None = None) -> bool:
        """Returns whether all keys exist now."""
        return bool(self._request(Op.CHECK, tuple(self._names(keys)), timeout)[0])

    def add(self, key: str, amount: int, timeout: Timeout | None = None) -> int:
        """Adds to a whole number and returns the sum; where the key does not exist, to 0.

        The value is the sum as text: `get` returns b"3".

        Args:
            key: The key.
            amount: What to add; may be negative.
            timeout: See the class.

        Raises:
            StoreValueError: The value is no whole number, or a number has more than 64 bits.
            TypeError: `amount` is no whole number.
        """
        whole = operator.index(amount)
        if not -(1 << 63) <= whole < 1 << 63:
            raise StoreValueError(f'add("{key}", {whole}): it has more than 64 bits')
        return int(self._request(Op.ADD, (self._name(key), b"%d" % whole), timeout)[0])

    def append(self, key: str, value: bytes | str, timeout: Timeout | None = None) -> None:
        """Adds bytes to the end of a key's value; where the key does not exist, sets it."""
        self._request(Op.APPEND, (self._name(key), as_bytes(value)), timeout)

    def compare_set(
        self, key: str, expected: bytes | str, desired: bytes | str, timeout: Timeout | None = None
    ) -> bytes:
        """Sets a key if it has the expected value, or if it does not exist and that is empty.

        Args:
            key: The key.
            expected: The value that it should have now; empty: it should not exist.
            desired: The value that it gets then.
            timeout: See the class.

        Returns:
            The value afterwards: `desired` if it was set, else the one that was there, or
            `expected` if the key does not exist.
        """
        fields = (self._name(key), as_bytes(expected), as_bytes(desired))
        return self._request(Op.COMPARE_SET, fields, timeout)[0]

    def delete_key(self, key: str, timeout: Timeout | None = None) -> bool:
        """Deletes a key and returns whether it existed."""
        return bool(self._request(Op.DELETE, (self._name(key),), timeout)[0])

    def num_keys(self, prefix: str = "", timeout: Timeout | None = None) -> int:
        """Returns the number of keys.

        Args:
            prefix: Count only those that begin with this.
            timeout: See the class.
        """
        return int(self._request(Op.NUM_KEYS, ((self._prefix + prefix).encode(),), timeout)[0])

    def watch(self, prefix: str = "", *, timeout: Timeout | None = None) -> Watch:
        """Returns a watch of the keys that begin with a prefix.

        It first returns the keys that exist, then every change. If a key changes faster than the
        changes are taken, only the newest is returned. A deletion is a change.

        Args:
            prefix: What keys begin with.
            timeout: How long the watch waits for a change; None: the store's timeout.
        """
        limit, begin = self._limit(timeout), self._prefix + prefix
        watch = Watch(
            self._connection.where,
            begin,
            limit,
            closed=self._connection.end_watch,
            hidden=len(self._prefix),
        )
        if self._connection.request(Op.WATCH, (begin.encode(),), limit, watch) is None:
            raise self._silent(Op.WATCH, limit)
        return watch

    def close(self) -> None:
        """Closes this client. The store's content remains. A second call has no effect."""

    def secret(self) -> str | None:
        """Returns a text that only the store's users know. A job makes its key from it.

        "" if nobody else can read the store. None if that is not known: a job over several hosts
        then needs a secret of its own.
        """
        return None

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _name(self, key: str) -> bytes:
        """Returns a key as the connection has it."""
        check_key(key, Limits())
        check_key(self._prefix + key, Limits())
        return (self._prefix + key).encode()

    def _names(self, keys: Sequence[str]) -> list[bytes]:
        if isinstance(keys, str):
            raise TypeError(f'a list of keys is needed; for one, ["{keys}"]')
        return [self._name(key) for key in keys]

    def _limit(self, timeout: Timeout | None) -> float:
        return seconds_of(self.timeout if timeout is None else timeout)

    def _request(
        self, op: Op, fields: tuple[bytes, ...], timeout: Timeout | None
    ) -> tuple[bytes, ...]:
        limit = self._limit(timeout)
        answer = self._connection.request(op, fields, limit)
        if answer is None:
            raise self._silent(op, limit)
        return answer

    def _silent(self, op: Op, limit: float) -> StoreTimeoutError:
        return StoreTimeoutError(
            f"{self._connection.where} has not answered {op.name} within {limit:g} s, and it is "
            "not known whether it has happened: its server is stopped or busy, or its host is cut "
            "off"
        )

    def _missing(self, names: list[bytes]) -> list[bytes]:
        """Returns those keys that do not exist, all of them where the server does not answer."""
        try:
            found = [self._request(Op.CHECK, (name,), 1.0)[0] for name in names]
        except StoreTimeoutError:
            return names
        return [name for name, exists in zip(names, found, strict=True) if not exists] or names

    def _missing_error(self, missing: list[bytes], seconds: float) -> StoreTimeoutError:
        names = ", ".join(f'"{key.decode()}"' for key in missing[:8])
        more = f" and {len(missing) - 8} others" if len(missing) > 8 else ""
        plural = "keys were" if len(missing) > 1 else "key was"
        within = f"{round(seconds, 2):g} s"
        return StoreTimeoutError(
            f"{self._connection.where}: the {plural} not set within {within}: {names}{more}. "
            "Look at the output of the processes that should set them, or wait longer (timeout=)"
        )


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


def seconds_of(timeout: Timeout) -> float:
    """Returns a time limit in seconds; ValueError if it is not a finite time above 0."""
    seconds = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else timeout
    if not 0 < seconds < math.inf:
        raise ValueError(f"a store's timeout is {timeout!r}, and has to be seconds above 0")
    return float(seconds)


def as_bytes(value: bytes | str) -> bytes:
    """Returns a value as a store keeps it; TypeError if it is neither bytes nor str."""
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(f"a value is bytes or str, and {value!r} is a {type(value).__name__}")
    return bytes(value)
