"""One thread that writes checkpoints, so that training goes on meanwhile."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from tfring.checkpoint import retries
from tfring.checkpoint.errors import CheckpointTimeoutError
from tfring.checkpoint.files import Draft

_log = logging.getLogger("tfring")


class Writer:
    """Writes one draft at a time. None waits for its turn: memory holds one copy of the state.

    A draft that the storage refuses is tried again after a delay, until a newer one takes its
    place. The thread starts with the first draft. It is a daemon: a storage that never answers
    does not keep the process from ending.
    """

    def __init__(self, write: Callable[[Draft], None], patience: float, where: str) -> None:
        """Sets what writes a draft, in this object's thread; no thread runs yet.

        The storage may fail for `patience` seconds before that is an error. `where` names it.
        """
        self._write = write
        self._patience, self._where = patience, where
        self._changed = threading.Condition()
        # Guarded by _changed:
        self._draft: Draft | None = None  # being written, or to be tried again
        self._attempting = False  # whether it is being written
        self._submitted_at = 0.0
        self._failures = 0  # since something was written
        self._failing_since = 0.0  # when the first of them was
        self._trouble = ""  # the last of them
        self._error: Exception | None = None  # `raise_error`, `wait` or `close` raises it
        self._replaced = False  # others write its share, until the storage takes the draft
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def busy(self) -> bool:
        """Whether a draft is being written, and does not wait for its next attempt."""
        with self._changed:
            return self._attempting

    def submit(self, draft: Draft) -> None:
        """Hands over a draft, after `make_room`; ValueError if the writer is closed."""
        with self._changed:
            if self._closed:
                raise ValueError("this Checkpointer is closed: nothing can be saved any more")
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="tfring-checkpoint", daemon=True
                )
                self._thread.start()
            self._draft, self._attempting, self._replaced = draft, True, False
            self._submitted_at = time.monotonic()
            self._changed.notify_all()

    def make_room(self, timeout: float) -> None:
        """Waits until no draft is being written, and gives up one that waits for a retry.

        CheckpointTimeoutError: the attempt does not end in time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: not self._attempting, _bounded(timeout)):
                raise CheckpointTimeoutError(self._unfinished(timeout))
            if self._draft is not None:
                _log.warning("checkpoint %s is given up for a newer one", self._draft.name)
            self._draft = None

    def give_up(self) -> None:
        """Forgets the draft and its failure: the writer does not try it again."""
        with self._changed:
            self._draft, self._error, self._failures = None, None, 0
            self._changed.notify_all()

    @property
    def trouble(self) -> str:
        """What keeps the storage from taking a draft; "" if nothing of the storage does."""
        with self._changed:
            if self._error is not None and retries.is_final(self._error):
                return ""
            if self._replaced or self._failures or self._error is not None:
                return self._trouble
            return self._unfinished(self._patience) if self._is_late() else ""

    @property
    def replaced(self) -> bool:
        """Whether others write its share."""
        with self._changed:
            return self._replaced

    def mark_replaced(self) -> None:
        """Marks the writer as replaced: it still retries the draft, but no call waits for that.

        Without a draft its next share shows whether the storage works.
        """
        with self._changed:
            self._trouble = self.trouble
            self._replaced = self._attempting or self._draft is not None
            self._error = None
            self._submitted_at = self._failing_since = time.monotonic()
            self._changed.notify_all()

    def fail(self, error: Exception) -> None:
        """Keeps an error of others than the storage, for `raise_error`, `wait` or `close`."""
        with self._changed:
            self._error, self._trouble = error, ""

    def raise_error(self) -> None:
        """Raises the error for which a draft was given up, once.

        CheckpointTimeoutError: a draft is being written for longer than the storage may fail.
        """
        with self._changed:
            self._raise_error()
            if self._is_late():
                raise CheckpointTimeoutError(self._unfinished(self._patience))

    def forget_error(self) -> None:
        """Forgets the error of a generation that is over."""
        with self._changed:
            self._error = None

    def wait(self, timeout: float) -> None:
        """Waits until the draft is written; raises the error for which one was given up, once.

        CheckpointTimeoutError: it is not written within `timeout` seconds.
        """
        with self._changed:
            if not self._changed.wait_for(self._is_done, _bounded(timeout)):
                raise CheckpointTimeoutError(self._unfinished(timeout))
            self._raise_error()

    def close(self, timeout: float) -> None:
        """Waits as `wait` does, and ends the thread; with CheckpointTimeoutError, too."""
        try:
            self.wait(timeout)
        finally:
            with self._changed:
                self._closed = True
                self._changed.notify_all()

    def _is_done(self) -> bool:
        return self._draft is None or self._replaced

    def _is_late(self) -> bool:
        return self._attempting and time.monotonic() - self._submitted_at > self._patience

    def _unfinished(self, timeout: float) -> str:
        cause = "the storage is slow or does not answer"
        if self._failures:
            cause = f"{self._failures} attempts failed, the last one with {self._trouble}"
        name = "" if self._draft is None else self._draft.name
        return (
            f"after {timeout:g} s checkpoint {name} is not written to {self._where}: {cause}. What "
            "was published before is whole. Look at the storage, or allow more time with timeout="
        )

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self) -> None:
        while (draft := self._next()) is not None:
            try:
                self._write(draft)
            except Exception as error:
                self._failed(draft, error)
            else:
                self._succeeded(draft)
            del draft  # its arrays are large where they are not the buffers of the Checkpointer

    def _next(self) -> Draft | None:
        """Returns what to write now; None if the writer is closed."""
        with self._changed:
            while not self._attempting and not self._closed:
                delay = None if self._draft is None else retries.delay(self._failures)
                notified = self._changed.wait(delay)
                self._attempting |= not notified and self._draft is not None
            if self._closed:
                self._draft, self._attempting = None, False
                self._changed.notify_all()
            return self._draft

    def _failed(self, draft: Draft, error: Exception) -> None:
        with self._changed:
            self._attempting = False
            if self._draft is draft:  # and was not given up meanwhile
                self._count(draft, error)
            self._replaced &= self._draft is not None
            self._changed.notify_all()

    def _count(self, draft: Draft, error: Exception) -> None:
        now = time.monotonic()
        self._failures += 1
        if self._failures == 1:
            self._failing_since = now
        self._trouble = retries.described(error)
        left = self._failing_since + self._patience - now
        if self._replaced:
            if retries.is_final(error):
                self._draft, self._failures = None, 0
        elif retries.is_final(error) or left <= 0:
            self._error, self._draft, self._failures = error, None, 0
        else:
            _log.warning(
                "checkpoint %s is not written to %s: %s. It is tried again in %g s, and training "
                "goes on. If nothing can be written for %.0f s more it is an error",
                draft.name,
                self._where,
                self._trouble,
                retries.delay(self._failures),
                left,
            )

    def _succeeded(self, draft: Draft) -> None:
        with self._changed:
            if self._failures:
                text = "checkpoint %s is written to %s, after %d attempts that failed"
                _log.warning(text, draft.name, self._where, self._failures)
            self._draft, self._attempting, self._failures = None, False, 0
            self._replaced = False
            self._changed.notify_all()


def _bounded(timeout: float) -> float:
    return min(timeout, threading.TIMEOUT_MAX)
