"""The file of a FileStore: a log of changes under a lock.

The file begins with a line that says what it is and a number of its own. Then come records:

    length of the body, its CRC-32, body: revision, kind, length of the key, key, value

Whoever changes something holds the lock (flock), which the kernel frees when its holder dies. A
record whose writer died while it wrote is incomplete and the last one: readers stop before it, and
the next writer cuts it off.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import secrets
import stat
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

from tfring.store.errors import StoreConnectionError, StoreError, StoreTimeoutError
from tfring.store.table import Change

_MAGIC = b"tfring store 1\n\0"
_ID_SIZE = 16
_HEADER = len(_MAGIC) + _ID_SIZE
_RECORD = struct.Struct("<II")
_BODY = struct.Struct("<QBH")
_SET, _DELETED = 1, 2
_READ_BYTES = 1 << 20
_FIRST_PAUSE = 0.0002
_LONGEST_PAUSE = 0.01


class FileLog:
    """One open file of changes. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        """Opens the file, or makes it, with mode 0600.

        Args:
            path: The file; its folder exists.

        Raises:
            StoreError: It is no file of a store, belongs to somebody else, or others can read it.
            OSError: It cannot be opened.
        """
        self.path = path
        self.end = 0  # of what was read and is complete
        self._id = b""
        self._seen: tuple[int, ...] = ()  # the state of the file when it was last read
        self._fd = _open(path)

    def close(self) -> None:
        """Closes the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def has_changed(self) -> bool:
        """Whether there may be something to read; takes no lock."""
        with contextlib.suppress(FileNotFoundError):
            return _state(os.stat(self.path)) != self._seen
        return True

    def rewind(self) -> None:
        """Reads the file from its start again."""
        self.end = _HEADER

    @contextlib.contextmanager
    def locked(self, deadline: float) -> Iterator[bool]:
        """Locks the file. Yields whether it is another one than before, to be read from its start.

        Args:
            deadline: ``time.monotonic()`` at which to give up.

        Raises:
            StoreTimeoutError: Another process held the lock all the time.
            StoreConnectionError: The file was removed, or another store's is there.
        """
        replaced = False
        self._lock(deadline)
        try:
            while not self._is_current():
                self.close()
                self._fd = _open(self.path)
                self._lock(deadline)
                replaced = True
            replaced = self._check_header() or replaced
            if replaced:
                self.rewind()
            yield replaced
            self._seen = _state(os.fstat(self._fd))
        finally:
            if self._fd >= 0:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def read(self) -> Iterator[Change]:
        """Returns the changes that were not read yet. The lock is held."""
        data, start = b"", self.end
        while chunk := os.pread(self._fd, _READ_BYTES, start + len(data)):
            data += chunk
            used = 0
            while (found := _parse(data, used)) is not None:
                used = found[1]
                self.end = start + used
                yield found[0]
            data, start = data[used:], start + used

    def append(self, changes: list[Change]) -> None:
        """Adds changes. The lock is held, and everything was read.

        Args:
            changes: In the order of their revisions.

        Raises:
            StoreError: The file cannot be written; it is as before.
        """
        data = b"".join(map(_record, changes))
        try:
            if os.fstat(self._fd).st_size > self.end:  # what somebody left who died
                os.ftruncate(self._fd, self.end)
            _write(self._fd, data, self.end)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self.end)
            raise StoreError(
                f"the FileStore {self.path} cannot be written, and nothing was changed: {error}"
            ) from None
        self.end += len(data)

    def rewrite(self, changes: list[Change]) -> None:
        """Puts a new file in place of the old one, which holds these changes only.

        The lock is held, of the old file before and of the new one afterwards. Where the folder
        takes no new file, the old one stays.

        Args:
            changes: In the order of their revisions; the last one has the store's.
        """
        data = b"".join([_MAGIC, self._id, *map(_record, changes)])
        other = self.path.with_name(f"{self.path.name}.{secrets.token_hex(8)}")
        with contextlib.suppress(OSError):
            fd = _open(other)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _write(fd, data, 0)
                os.rename(other, self.path)
            except BaseException:
                os.close(fd)
                with contextlib.suppress(OSError):
                    os.unlink(other)
                raise
            self.close()
            self._fd, self.end = fd, len(data)

    def _lock(self, deadline: float) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise StoreTimeoutError(
                        f"the FileStore {self.path} was locked by another process until the time "
                        "was up: one of its users is stopped, or there are too many"
                    ) from None
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(1.5 * pause, _LONGEST_PAUSE)

    def _is_current(self) -> bool:
        """Whether the path still names the file that is open."""
        try:
            there = os.stat(self.path, follow_symlinks=False)
        except FileNotFoundError:
            raise StoreConnectionError(
                f"the FileStore {self.path} was removed while it was in use: make a new one"
            ) from None
        here = os.fstat(self._fd)
        return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)

    def _check_header(self) -> bool:
        """Reads the header, or writes it into an empty file; returns whether it is new to us."""
        header = os.pread(self._fd, _HEADER, 0)
        if len(header) < _HEADER and (_MAGIC.startswith(header) or header.startswith(_MAGIC)):
            header = _MAGIC + secrets.token_bytes(_ID_SIZE)
            _write(self._fd, header, 0)
        if not header.startswith(_MAGIC):
            raise StoreError(f"{self.path} is not the file of a FileStore: choose another path")
        own, self._id = self._id, header[len(_MAGIC) :]
        if own and own != self._id:
            raise StoreConnectionError(
                f"the FileStore {self.path} was replaced by another while it was in use: make a "
                "new one"
            )
        return not own


def _state(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _open(path: Path) -> int:
    """Opens a file of this user's that nobody else can read; makes it if there is none."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise StoreError(f"{path} is no regular file: choose another path for the FileStore")
        if status.st_uid not in (os.geteuid(), 0):
            raise StoreError(f"{path} belongs to another user: choose another path")
        if status.st_mode & 0o077 and status.st_size == 0:
            os.fchmod(fd, 0o600)  # made by another program, for this use
        elif status.st_mode & 0o077:
            mode = stat.S_IMODE(status.st_mode)
            raise StoreError(
                f"{path} has mode {mode:04o}, so that others can read or change the store: remove "
                "it, or choose another path"
            )
    except BaseException:
        os.close(fd)
        raise
    return fd


def _write(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


def _record(change: Change) -> bytes:
    key = change.key.encode()
    kind = _DELETED if change.value is None else _SET
    body = _BODY.pack(change.revision, kind, len(key)) + key + (change.value or b"")
    return _RECORD.pack(len(body), zlib.crc32(body)) + body


def _parse(data: bytes, start: int) -> tuple[Change, int] | None:
    """Returns the change at a place and where the next one is; None if it is not complete."""
    if len(data) < start + _RECORD.size:
        return None
    length, checksum = _RECORD.unpack_from(data, start)
    begin = start + _RECORD.size
    body = data[begin : begin + length]
    if length < _BODY.size or len(body) < length or zlib.crc32(body) != checksum:
        return None
    revision, kind, size = _BODY.unpack_from(body)
    key = body[_BODY.size : _BODY.size + size].decode()
    value = None if kind == _DELETED else body[_BODY.size + size :]
    return Change(key, value, revision), begin + length
