"""Writes in a thread, so that a stuck terminal or a slow or full disk never holds up a job."""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from typing import Protocol

# At most this much waits to be written; what comes on top of it is left out.
MOST_WAITING_BYTES = 16 << 20
# At the end of a job a writer without progress is given up after this time.
PATIENCE_SECONDS = 10.0
_MOST_AT_ONCE = 1 << 20
_TOO_SLOWLY = "it was written too slowly"


class Target(Protocol):
    """Where output goes."""

    def write(self, data: bytes) -> None:
        """Writes all of `data`. Raises OSError, whose `written` may say how much was written."""


class Descriptor:
    """A file descriptor as a target. It stays open: another object owns it."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def write(self, data: bytes) -> None:
        """Writes all of `data`, as long as that may take."""
        done = 0
        while done < len(data):
            try:
                done += os.write(self.fd, memoryview(data)[done:])
            except BlockingIOError:  # some other program has made it so
                select.select([], [self.fd], [])
            except OSError as error:
                error.written = done  # type: ignore[attr-defined]
                raise


class BackgroundWriter:
    """A queue of data and a thread that writes it, target by target in the order of the calls.

    Any thread may use it. The thread is a daemon: a write that never ends keeps no process alive.
    """

    def __init__(self, most_waiting: int = MOST_WAITING_BYTES) -> None:
        self._most = most_waiting
        self._changed = threading.Condition()  # guards all below
        self._queue: deque[tuple[QueuedFile, bytes]] = deque()
        self._waiting = 0  # bytes in the queue and in the write that goes on
        self._done = 0  # bytes that were written or given up
        self._thread: threading.Thread | None = None
        self._over = False

    def put(self, file: QueuedFile, data: bytes) -> bool:
        """Takes data to be written; returns False if too much waits already."""
        with self._changed:
            if self._waiting and self._waiting + len(data) > self._most:
                return False
            self._queue.append((file, data))
            self._waiting += len(data)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return True

    def drain(self, patience: float = PATIENCE_SECONDS) -> bool:
        """Waits until all is written; returns False when nothing moved for `patience` seconds."""
        with self._changed:
            done, since = self._done, time.monotonic()
            while self._waiting:
                left = since + patience - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
                if self._done != done:
                    done, since = self._done, time.monotonic()
        return True

    def close(self, patience: float = PATIENCE_SECONDS) -> bool:
        """As drain(), and ends the thread if all was written."""
        drained = self.drain(patience)
        with self._changed:
            self._over = drained
            self._changed.notify_all()
        return drained

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._queue:
                    if self._over:
                        return
                    self._changed.wait()
                file, data = self._queue.popleft()
                parts, size = [data], len(data)
                while self._queue and self._queue[0][0] is file and size < _MOST_AT_ONCE:
                    parts.append(self._queue.popleft()[1])
                    size += len(parts[-1])
            file.write_now(b"".join(parts))
            with self._changed:
                self._waiting -= size
                self._done += size
                self._changed.notify_all()


class QueuedFile:
    """A file of bytes that is written by a BackgroundWriter; write() and flush() never block.

    Where lines had to be left out, a line says how many of `what` ("the output") as soon as there
    is space again. Used by one thread, besides the writer's.
    """

    def __init__(self, writer: BackgroundWriter, target: Target, what: str) -> None:
        self._writer = writer
        self._target = target
        self._what = what
        self._pending = bytearray()
        self._refused = 0  # lines that the writer had no space for, not told yet
        self._lock = threading.Lock()  # guards all below
        self._failed = 0  # lines that could not be written, not told yet
        self._reason = ""  # why, of the last of them
        self._reader_gone = False

    def fileno(self) -> int:
        """Returns the descriptor behind it; OSError if there is none."""
        if isinstance(self._target, Descriptor):
            return self._target.fd
        raise OSError("no descriptor")

    def write(self, data: bytes) -> int:
        """Takes data, which flush() hands on; BrokenPipeError if the reader has gone."""
        with self._lock:
            if self._reader_gone:
                raise BrokenPipeError
        self._pending += data
        return len(data)

    def flush(self) -> None:
        """Hands on what has been written since the last time, or leaves it out as a whole."""
        data = bytes(self._pending)
        self._pending.clear()
        note = self._note(self._refused, _TOO_SLOWLY) if self._refused else b""
        if not note and not data:
            return
        if self._writer.put(self, note + data):
            self._refused = 0
        elif data:
            self._refused += _lines(data)

    def left_out(self) -> str:
        """Returns a text about lines that were left out if no line has said so yet; else ""."""
        with self._lock:
            count, reason = self._failed + self._refused, self._reason
        text = self._note(count, reason or _TOO_SLOWLY)
        return text.decode("utf-8", "surrogateescape").rstrip("\n") if count else ""

    def _note(self, count: int, reason: str) -> bytes:
        lines = "line" if count == 1 else "lines"
        text = f"tfring run: {count} {lines} of {self._what} left out: {reason}\n"
        return text.encode("utf-8", "surrogateescape")

    def write_now(self, data: bytes) -> None:
        """Writes data; called by the writer's thread alone."""
        with self._lock:
            failed, reason = self._failed, self._reason
        try:
            if failed:
                self._target.write(self._note(failed, reason))
                with self._lock:
                    self._failed = 0
                    self._reason = ""
            self._target.write(data)
        except BrokenPipeError:
            with self._lock:
                self._reader_gone = True
        except OSError as error:
            with self._lock:
                self._failed += _lines(data[getattr(error, "written", 0) :])
                self._reason = error.strerror or str(error)


def _lines(data: bytes) -> int:
    return max(1, data.count(b"\n"))
