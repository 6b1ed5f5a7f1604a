"""One thread that writes checkpoints, so that training goes on meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tfring.checkpoint.errors import CheckpointTimeoutError
from tfring.checkpoint.files import Draft
from tfring.checkpoint.manifest import checkpoint_name


class Writer:
    """Writes drafts in the order in which they come; at most one waits for its turn.

    One that comes while another waits takes its place: a slow storage gets fewer checkpoints, each
    as new as it can be, and nobody waits for it. The thread starts with the first draft. It is a
    daemon: a storage that never answers does not keep the process from ending.
    """

    def __init__(self, write: Callable[[Draft], None]) -> None:
        """Sets what writes one draft; called by the thread of this object only."""
        self._write = write
        self._changed = threading.Condition()
        # Guarded by _changed:
        self._waiting: Draft | None = None
        self._writing: Draft | None = None
        self._failure: Exception | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, draft: Draft) -> Draft | None:
        """Hands over a draft; returns at once.

        Returns:
            The draft that it has replaced, which will not be written.

        Raises:
            Exception: what an earlier draft has failed with, once; this one is not written.
            ValueError: the writer is closed.
        """
        with self._changed:
            if self._closed:
                raise ValueError("this Checkpointer is closed: nothing can be saved any more")
            self._raise_failure()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="tfring-checkpoint", daemon=True
                )
                self._thread.start()
            replaced, self._waiting = self._waiting, draft
            self._changed.notify_all()
            return replaced

    def raise_failure(self) -> None:
        """Raises what an earlier draft has failed with, once."""
        with self._changed:
            self._raise_failure()

    def wait(self, timeout: float, where: str) -> None:
        """Waits until all drafts are written.

        Args:
            timeout: seconds.
            where: what they are written to, for the error.

        Raises:
            CheckpointTimeoutError: they are not written in time.
            Exception: what one of them has failed with, once.
        """
        until = time.monotonic() + timeout
        with self._changed:
            while self._waiting is not None or self._writing is not None:
                left = until - time.monotonic()
                if left <= 0:
                    raise CheckpointTimeoutError(self._unfinished(timeout, where))
                self._changed.wait(left)
            self._raise_failure()

    def close(self, timeout: float, where: str) -> None:
        """Waits as `wait` does, and ends the thread; with CheckpointTimeoutError, too."""
        try:
            self.wait(timeout, where)
        finally:
            with self._changed:
                self._closed = True
                self._waiting = None
                self._changed.notify_all()

    def _unfinished(self, timeout: float, where: str) -> str:
        names = [checkpoint_name(d.generation, d.step) for d in (self._writing, self._waiting) if d]
        return (
            f"after {timeout:g} s checkpoint {' and then '.join(names)} is not written to {where}: "
            "the storage is slow or does not answer. What was published before is whole. Look at "
            "the storage, or allow more time with timeout="
        )

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._waiting is None and not self._closed:
                    self._changed.wait()
                if self._waiting is None:
                    return
                draft = self._writing = self._waiting
                self._waiting = None
            failure: Exception | None = None
            try:
                self._write(draft)
            except Exception as error:
                failure = error
            del draft  # its arrays are large
            with self._changed:
                self._writing = None
                self._failure = failure or self._failure
                self._changed.notify_all()
