"""Watches: what changes in a store, as it changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from tfring.job.store.errors import StoreError, StoreTimeoutError, StoreWatchError
from tfring.job.store.table import Change


class Newest:
    """The newest change of each key that the other end has yet to get, in order of revisions.

    It never holds more than the store does, even for a slow reader. Not thread-safe.
    """

    def __init__(self) -> None:
        self._changes: dict[str, Change] = {}

    def __bool__(self) -> bool:
        return bool(self._changes)

    def put(self, change: Change) -> None:
        """Adds a change, which replaces an earlier one of its key."""
        self._changes.pop(change.key, None)
        self._changes[change.key] = change

    def take(self) -> Change:
        """Removes the oldest change and returns it."""
        return self._changes.pop(next(iter(self._changes)))


class Watch:
    """The changes of some keys of a store, first of all their present values.

    Of changes of one key that come faster than they are taken only the newest is kept. Iterating
    goes on until close(), which any thread may call. Thread-safe.

        with store.watch("workers/") as watch:
            for change in watch:
                print(change.key, change.value, change.revision)
    """

    def __init__(
        self,
        where: str,
        prefix: str,
        timeout: float,
        *,
        closed: Callable[[Watch], None] | None = None,
        hidden: int = 0,
    ) -> None:
        """Made by `Store.watch`.

        `closed` is called once, when the watch is closed. `hidden` characters of each key are left
        out in the changes that it returns.
        """
        self.prefix = prefix
        self._where = where
        self._timeout = timeout
        self._on_close = closed
        self._hidden = hidden
        self._condition = threading.Condition()  # guards all below
        self._newest = Newest()
        self._known: dict[str, int] = {}  # the revision of every key that was told of
        self._failure: StoreError | None = None
        self._closed = False
        self._ready: Callable[[], None] | None = None

    def next(self, timeout: float | None = None) -> Change:
        """Returns the next change.

        Args:
            timeout: Seconds to wait for it; None: the store's.

        Raises:
            StoreTimeoutError: Nothing has changed.
            StoreWatchError: The watch or its store was closed.
            StoreConnectionError: The store is gone.
        """
        limit = self._timeout if timeout is None else timeout
        deadline = time.monotonic() + limit
        with self._condition:
            while not self._newest:
                self._raise_if_over()
                left = deadline - time.monotonic()
                if left <= 0:
                    raise StoreTimeoutError(
                        f'no key that begins with "{self.prefix}" has changed in {self._where} '
                        f"within {limit:g} s"
                    )
                self._condition.wait(min(left, threading.TIMEOUT_MAX))
            return self._oldest()

    def take(self) -> Change | None:
        """Returns the next change; None if there is none now; raises what `next` does."""
        with self._condition:
            if self._newest:
                return self._oldest()
            self._raise_if_over()
            return None

    def on_ready(self, call: Callable[[], None]) -> None:
        """Has a function called when take() would return or raise something.

        A thread can so wait for a watch and for other things at once. Any thread may call the
        function, and at once if there is something already: it must neither take long nor use the
        watch.
        """
        with self._condition:
            self._ready = call
            if self._newest or self._failure is not None or self._closed:
                call()

    def __iter__(self) -> Iterator[Change]:
        while True:
            try:
                yield self.next(threading.TIMEOUT_MAX)
            except StoreWatchError:
                return

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the watch. What waits for a change gets a StoreWatchError."""
        with self._condition:
            if self._closed:
                return
            self._closed = True
            self._notify()
        if self._on_close is not None:
            self._on_close(self)

    def put(self, change: Change) -> None:
        """Adds a change, unless the watch has it already. For stores."""
        with self._condition:
            if not change.key.startswith(self.prefix):
                return
            if change.value is None and change.key not in self._known:
                return
            if change.revision <= self._known.get(change.key, 0):
                return
            if change.value is None:
                del self._known[change.key]
            else:
                self._known[change.key] = change.revision
            had_some = bool(self._newest)
            self._newest.put(change)
            if not had_some:
                self._notify()

    def retain(self, present: set[str], revision: int) -> None:
        """Adds deletions of all keys that the watch knows and that exist no more. For stores."""
        with self._condition:
            for key in [key for key in self._known if key not in present]:
                self.put(Change(key, None, revision))

    def fail(self, error: StoreError) -> None:
        """Ends the watch with an error, once the changes before it are taken. For stores."""
        with self._condition:
            self._failure = self._failure or error
            self._notify()

    def _oldest(self) -> Change:
        change = self._newest.take()
        return change._replace(key=change.key[self._hidden :])

    def _notify(self) -> None:
        self._condition.notify_all()
        if self._ready is not None:
            self._ready()

    def _raise_if_over(self) -> None:
        if self._closed:
            raise StoreWatchError(f'the watch of "{self.prefix}" in {self._where} was closed')
        if self._failure is not None:
            raise self._failure
