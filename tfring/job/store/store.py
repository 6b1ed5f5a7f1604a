"""What every store can do."""

from __future__ import annotations

import abc
import datetime
import math
import time
from collections.abc import Sequence

from tfring.job.store.errors import StoreTimeoutError
from tfring.job.store.watch import Watch

Timeout = float | datetime.timedelta  # a number is seconds
DEFAULT_TIMEOUT = datetime.timedelta(seconds=300)


class Store(abc.ABC):
    """Keys and values that several threads, processes or hosts share.

    Operations have the names and arguments of torch.distributed's stores. Keys are texts of up to
    1024 bytes, values bytes of up to 16 MiB; a str is stored as UTF-8. Every operation happens at
    one moment between its call and its return, and all clients see the operations in the same
    order. All methods may be called from any thread.

    Every operation takes a `timeout`, seconds or a timedelta: how long it waits for the store, and
    for keys; None: the store's own. Every operation can raise:

        StoreTimeoutError: The store did not answer in time, or a key was not set.
        StoreConnectionError: The store is gone or closed.

    What sets something can raise, too:

        StoreLimitError: The key or the value is too long, or the store is full.
    """

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
        """How long an operation waits if it is not told otherwise."""
        return datetime.timedelta(seconds=self._timeout)

    def set_timeout(self, timeout: Timeout) -> None:
        """Sets how long an operation waits if it is not told otherwise.

        Args:
            timeout: Seconds, or a timedelta.

        Raises:
            ValueError: It is not a finite time above 0.
        """
        self._timeout = seconds_of(timeout)

    @abc.abstractmethod
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
            ephemeral: Only of a TCPStore: the key goes when this client's connection to the server
                has been gone for longer than its lease, or the client is closed.
            timeout: See the class.
        """

    def multi_set(
        self, keys: Sequence[str], values: Sequence[bytes | str], timeout: Timeout | None = None
    ) -> None:
        """Sets several keys, in this order; others may see some of them before the rest is set.

        Args:
            keys: The keys.
            values: The value of each.
            timeout: See the class.

        Raises:
            ValueError: There are not as many values as keys.
            StoreLimitError: As of `set`. The keys after that one may be set or not.
        """
        deadline = deadline_after(self._limit(timeout))
        for key, value in pairs(keys, values):
            self.set(key, value, timeout=max(0.001, deadline - time.monotonic()))

    @abc.abstractmethod
    def get(self, key: str, timeout: Timeout | None = None) -> bytes:
        """Returns the value of a key. Waits until the key exists."""

    def multi_get(self, keys: Sequence[str], timeout: Timeout | None = None) -> list[bytes]:
        """Returns the values of several keys. Waits until all of them exist."""
        deadline = deadline_after(self._limit(timeout))
        return [self.get(key, max(0.001, deadline - time.monotonic())) for key in key_list(keys)]

    @abc.abstractmethod
    def wait(self, keys: Sequence[str], timeout: Timeout | None = None) -> None:
        """Waits until all keys exist. The error names those that are missing."""

    @abc.abstractmethod
    def check(self, keys: Sequence[str], timeout: Timeout | None = None) -> bool:
        """Returns whether all keys exist now."""

    @abc.abstractmethod
    def add(self, key: str, amount: int, timeout: Timeout | None = None) -> int:
        """Adds to a whole number and returns the sum; where the key does not exist, to 0.

        The value is the sum as text: `get` returns b"3".

        Args:
            key: The key.
            amount: What to add; may be negative.
            timeout: See the class.

        Raises:
            StoreValueError: The value is no whole number, or the sum has more than 64 bits.
        """

    @abc.abstractmethod
    def append(self, key: str, value: bytes | str, timeout: Timeout | None = None) -> None:
        """Adds bytes to the end of a key's value; where the key does not exist, sets it."""

    @abc.abstractmethod
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

    @abc.abstractmethod
    def delete_key(self, key: str, timeout: Timeout | None = None) -> bool:
        """Deletes a key and returns whether it existed."""

    @abc.abstractmethod
    def num_keys(self, prefix: str = "", timeout: Timeout | None = None) -> int:
        """Returns the number of keys.

        Args:
            prefix: Count only those that begin with this.
            timeout: See the class.
        """

    @abc.abstractmethod
    def watch(
        self, prefix: str = "", *, exact: bool = False, timeout: Timeout | None = None
    ) -> Watch:
        """Returns a watch of the keys that begin with a prefix.

        It first tells of those that exist, then of every change. Changes of one key that come
        faster than they are taken are told of as one, the newest; a deletion is one, too.

        Args:
            prefix: What keys begin with.
            exact: Only the key that is `prefix` itself.
            timeout: How long the watch waits for a change; None: the store's timeout.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Ends the use of the store here; its content stays for others. Again: nothing."""

    def secret(self) -> str | None:
        """Returns a text that only those who may use the store know; a job's key is made from it.

        "" where nobody else can read what is in the store; None where this is not known, so that a
        job over several hosts needs a secret of its own.
        """
        return None

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _limit(self, timeout: Timeout | None) -> float:
        return self._timeout if timeout is None else seconds_of(timeout)


def seconds_of(timeout: Timeout) -> float:
    """Returns a time limit in seconds.

    Raises:
        ValueError: It is not a finite time above 0.
    """
    seconds = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else timeout
    if not 0 < seconds < math.inf:
        raise ValueError(f"a store's timeout is {timeout!r}, and has to be seconds above 0")
    return float(seconds)


def as_bytes(value: bytes | str) -> bytes:
    """Returns a value as a store keeps it.

    Raises:
        TypeError: It is neither bytes nor str.
    """
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(f"a value is bytes or str, and {value!r} is a {type(value).__name__}")
    return bytes(value)


def key_list(keys: Sequence[str]) -> list[str]:
    """Returns keys as a list.

    Raises:
        TypeError: One str was given instead of a list, whose letters would be the keys.
    """
    if isinstance(keys, str):
        raise TypeError(f'a list of keys is needed; for one, ["{keys}"]')
    return list(keys)


def pairs(keys: Sequence[str], values: Sequence[bytes | str]) -> list[tuple[str, bytes | str]]:
    """Returns each key with its value.

    Raises:
        TypeError: One str was given instead of a list, whose letters would be the keys.
        ValueError: There are not as many values as keys.
    """
    if len(key_list(keys)) != len(values):
        raise ValueError(f"{len(keys)} keys and {len(values)} values: each key needs one")
    return list(zip(keys, values, strict=True))


def missing_error(where: str, missing: Sequence[str], seconds: float) -> StoreTimeoutError:
    """Returns the error for keys that were not set in time.

    Args:
        where: The store.
        missing: The keys.
        seconds: How long they were waited for.
    """
    names = ", ".join(f'"{key}"' for key in missing[:8])
    more = f" and {len(missing) - 8} others" if len(missing) > 8 else ""
    plural = "keys were" if len(missing) > 1 else "key was"
    return StoreTimeoutError(
        f"{where}: the {plural} not set within {seconds:g} s: {names}{more}. Look at the output of "
        "the processes that should set them, or wait longer (timeout=)"
    )


def deadline_after(seconds: float) -> float:
    """Returns the ``time.monotonic()`` after so many seconds."""
    return time.monotonic() + seconds
