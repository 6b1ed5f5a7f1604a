"""A store in a file, for processes that share a folder."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tfring.store.errors import StoreConnectionError, StoreError, StoreTimeoutError
from tfring.store.file_log import FileLog
from tfring.store.store import DEFAULT_TIMEOUT, deadline_after
from tfring.store.table import Change, Limits, Table
from tfring.store.table_store import TableStore
from tfring.store.watch import LONGEST_PAUSE

_FIRST_PAUSE = 0.001
# Another host may change a file on a network without its size being seen here without the lock.
_LOOK_SECONDS = 1.0
# A log is written anew when it is longer than this, and than so many times its content.
_LONG_BYTES = 1 << 20
_LONG_TIMES = 4


class FileStore(TableStore):
    """A store in a file that all its users can write: of one host, or on a file system that locks.

    The file has mode 0600 and stays when the store is closed. A user that is killed, in the middle
    of an operation as well, leaves the store whole. What waits looks at the file every 50 ms.
    Nothing is done against the failure of a host: what was written last may be lost then.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        timeout: float = DEFAULT_TIMEOUT,
        *,
        limits: Limits | None = None,
    ) -> None:
        """Opens a store, or makes an empty one.

        Args:
            path: Its file, in a folder that exists.
            timeout: Seconds that an operation waits by default.
            limits: How much the store takes.

        Raises:
            StoreError: The file cannot be opened, is none of a store, or is not this user's alone.
            StoreTimeoutError: Another process held its lock all the time.
            ValueError: The timeout is no number of seconds.
        """
        super().__init__(timeout)
        self._path = os.path.abspath(path)
        self._limits = limits
        self._lock = threading.Lock()  # guards all below, and the file's lock
        self._closed = False
        self._open()
        try:
            with self._locked(deadline_after(self._timeout)):
                pass  # it is the file of a store, and which
        except BaseException:
            self._log.close()
            raise

    def close(self) -> None:
        """Closes the file; whatever waits gets a StoreConnectionError."""
        with self._lock:
            self._closed = True
            self._log.close()
            self._end_watches()

    def secret(self) -> str:
        """Returns "": nobody else can read the file."""
        return ""

    def _where(self) -> str:
        return f"the FileStore {self._path}"

    def _open(self) -> None:
        try:
            self._log = FileLog(Path(self._path))
        except OSError as error:
            raise StoreError(f"{self._where()} cannot be opened: {error}") from None
        self._pid = os.getpid()
        self._made: list[Change] = []  # by the operation that runs
        self._table = Table(self._made.append, self._limits)
        self._valid = True  # the table is what was read of the file

    @contextlib.contextmanager
    def _locked(self, deadline: float) -> Iterator[Table]:
        if self._pid != os.getpid():
            # A forked child shares the locks of its parent, and may have half of its state.
            self._lock = threading.Lock()
            self._log.close()
            self._open()
            self._watches = []
        if not self._lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise StoreTimeoutError(f"{self._where()} was in use by another thread all the time")
        try:
            if self._closed:
                raise StoreConnectionError(f"{self._where()} was closed: make a new one")
            with self._log.locked(deadline) as replaced:
                self._catch_up(replaced)
                yield self._table
                self._keep()
        except BaseException:
            # An operation that failed has changed nothing, unless the file could not be written.
            self._valid = self._valid and not self._made
            raise
        finally:
            self._made.clear()
            self._lock.release()

    def _catch_up(self, replaced: bool) -> None:
        """Reads what others have changed, all of the file if need be."""
        if replaced or not self._valid:
            self._log.rewind()
            self._table = Table(self._made.append, self._limits)
        for change in self._log.read():
            self._table.apply(change)
            self._tell(change)
        if replaced or not self._valid:
            present = {change.key for change in self._table.matching("")}
            for watch in list(self._watches):
                watch.retain(present, self._table.revision)
        self._valid = True
        self._made.clear()

    def _keep(self) -> None:
        """Writes what the operation has changed."""
        if not self._made:
            return
        self._log.append(self._made)
        for change in self._made:
            self._tell(change)
        self._made.clear()
        if self._log.end > max(_LONG_BYTES, _LONG_TIMES * self._table.total_bytes):
            # A deletion of no key carries the revision where the last change was a deletion.
            state = [*self._table.matching(""), Change("", None, self._table.revision)]
            self._log.rewrite(state)

    def _poll(self) -> Callable[[float], None]:
        looked = time.monotonic()

        def look(deadline: float) -> None:
            nonlocal looked
            if time.monotonic() < looked + _LOOK_SECONDS and not self._may_differ(None):
                return
            looked = time.monotonic()
            try:
                with self._locked(deadline):
                    pass
            except StoreTimeoutError:
                return
            except StoreConnectionError:
                if not self._closed:  # of a closed store the watch says it
                    raise

        return look

    def _may_differ(self, revision: int | None) -> bool:
        """Whether the store may have changed, since a revision if one is given."""
        with self._lock:
            if self._closed or self._pid != os.getpid() or self._log.has_changed():
                return True
            return revision is not None and self._table.revision != revision

    def _wait_beyond(self, revision: int, deadline: float) -> None:
        pause, look = _FIRST_PAUSE, time.monotonic() + _LOOK_SECONDS
        while time.monotonic() < min(deadline, look) and not self._may_differ(revision):
            time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
            pause = min(2 * pause, LONGEST_PAUSE)
