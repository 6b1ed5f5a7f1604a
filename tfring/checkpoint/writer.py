"""One thread that writes checkpoints, so that training goes on meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tfring.checkpoint.errors import CheckpointTimeoutError
from tfring.checkpoint.files import Draft
from tfring.checkpoint.manifest import checkpoint_name


class Writer:
    """Writes one draft at a time. None waits for its turn: memory holds one copy of the state.

    The thread starts with the first draft. It is a daemon: a storage that never answers does not
    keep the process from ending.
    """

    def __init__(self, write: Callable[[Draft], None]) -> None:
        """Sets what writes one draft; called by the thread of this object only."""
        self._write = write
        self._changed = threading.Condition()
        # Guarded by _changed:
        self._writing: Draft | None = None
        self._failure: Exception | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def busy(self) -> bool:
        """Whether a draft is being written."""
        with self._changed:
            return self._writing is not None

    def submit(self, draft: Draft) -> None:
        """Hands over a draft; returns at once.

        Raises:
            Exception: what an earlier draft has failed with, once; this one is not written.
            RuntimeError: the earlier draft is still being written.
            ValueError: the writer is closed.
        """
        with self._changed:
            if self._closed:
                raise ValueError("this Checkpointer is closed: nothing can be saved any more")
            if self._writing is not None:
                raise RuntimeError(f"{self._name()} is being written: wait for it first")
            self._raise_failure()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="tfring-checkpoint", daemon=True
                )
                self._thread.start()
            self._writing = draft
            self._changed.notify_all()

    def raise_failure(self) -> None:
        """Raises what an earlier draft has failed with, once."""
        with self._changed:
            self._raise_failure()

    def wait(self, timeout: float, where: str) -> None:
        """Waits until the draft is written.

        Args:
            timeout: seconds.
            where: what it is written to, for the error.

        Raises:
            CheckpointTimeoutError: it is not written in time.
            Exception: what it, or an earlier one, has failed with, once.
        """
        until = time.monotonic() + timeout
        with self._changed:
            while self._writing is not None:
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
                self._changed.notify_all()

    def _unfinished(self, timeout: float, where: str) -> str:
        return (
            f"after {timeout:g} s checkpoint {self._name()} is not written to {where}: the storage "
            "is slow or does not answer. What was published before is whole. Look at the storage, "
            "or allow more time with timeout="
        )

    def _name(self) -> str:
        draft = self._writing
        return "" if draft is None else checkpoint_name(draft.generation, draft.step)

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._writing is None and not self._closed:
                    self._changed.wait()
                if self._writing is None:
                    return
                draft = self._writing
            failure: Exception | None = None
            try:
                self._write(draft)
            except Exception as error:
                failure = error
            del draft  # its arrays are large where they are not the buffers of the Checkpointer
            with self._changed:
                self._writing = None
                self._failure = failure or self._failure
                self._changed.notify_all()
