"""Memory of a host in which the newest commit outlives the process that has made it.

The agent of a host makes two memory files and hands them to every worker that it starts. So they
are there while the agent or a worker of this host lives, no other user can open them, and nothing
is left of them when the job is over, however it ends.

A commit goes into the file that does not hold the newest one. The head of that file is cleared
first and written last: a writer that is killed leaves a file that does not count, and the other.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from tfring.job.environments.elastic import MEMORY_NAME

_MAGIC = b"TFRCOPY1"
_FIELDS = struct.Struct("<8sQQQQQQ")
_CHECK = struct.Struct("<I")
_HEAD_BYTES = _FIELDS.size + _CHECK.size
_LENGTH = struct.Struct("<Q")
_LOCK_SECONDS = 10.0
_POLL_SECONDS = 0.02
# One call moves less than 2 GiB.
_MOST_AT_ONCE = 1 << 30


class CopyHead(NamedTuple):
    """Which commit a copy holds; the lineage, the commit and the step are those of `Progress`."""

    generation: int  # the one that has made it
    lineage: int
    commit: int
    step: int
    contents: int  # a hash of what the state consists of


class CommitMemory:
    """The memory files of this host. For one thread; others take an instance of their own."""

    def __init__(self, descriptors: Sequence[int]) -> None:
        """Opens both files once more: a lock is one opening's. The descriptors stay the caller's.

        OSError: they are not open here: the launcher of this process has closed them.
        """
        self._files: list[int] = []
        try:
            for descriptor in descriptors:
                path = f"/proc/self/fd/{descriptor}"
                if not os.readlink(path).startswith(f"/memfd:{MEMORY_NAME}"):
                    raise FileNotFoundError(f"{path} is another file")
                self._files.append(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        except OSError:
            self.close()
            raise

    def put(self, head: CopyHead, lengths: Sequence[int], pieces: Iterable[Any]) -> bool:
        """Keeps a commit in the place of an older one; returns whether it is kept.

        It is not if a newer generation has made a copy, or another process makes one. The lengths
        are the bytes of each part of the state; the pieces are these bytes, cut in any way.
        OSError: the memory is used up.
        """
        if not self._lock(0.0):
            return False
        try:
            newest = self._newest()
            if newest is not None and newest[0].generation > head.generation:
                return False
            file = self._files[0] if newest is None or newest[1] != 0 else self._files[1]
            try:
                _fill(file, head, lengths, pieces)
            except BaseException:
                os.truncate(file, 0)
                raise
            return True
        finally:
            self._unlock()

    def newest(self) -> CopyHead | None:
        """Returns which commit is kept here; None: none."""
        found = self._newest()
        return None if found is None else found[0]

    @contextlib.contextmanager
    def reading(self) -> Iterator[tuple[CopyHead, Iterator[bytearray]] | None]:
        """Gives the newest commit with its parts, each when it is asked for; None: there is none.

        TimeoutError: another process has been writing for 10 s, and probably stands still.
        """
        if not self._lock(_LOCK_SECONDS):
            raise TimeoutError(f"another process has held the memory for {_LOCK_SECONDS:g} s")
        try:
            found = self._newest()
            yield None if found is None else (found[0], self._parts(self._files[found[1]]))
        finally:
            self._unlock()

    def clear(self) -> None:
        """Frees the memory: nobody needs the copy any more."""
        if not self._lock(0.0):
            return  # of a newer generation, or of a process that is about to be killed
        try:
            for file in self._files:
                os.truncate(file, 0)
        finally:
            self._unlock()

    def close(self) -> None:
        """Closes what the constructor has opened."""
        while self._files:
            os.close(self._files.pop())

    def _newest(self) -> tuple[CopyHead, int] | None:
        found = []
        for number, file in enumerate(self._files):
            head = os.pread(file, _HEAD_BYTES, 0)
            fields = head[: _FIELDS.size]
            if len(head) < _HEAD_BYTES or head[_FIELDS.size :] != _CHECK.pack(zlib.crc32(fields)):
                continue
            magic, *values, _ = _FIELDS.unpack(fields)
            if magic == _MAGIC:
                found.append((CopyHead(*values), number))
        return max(found, key=lambda one: (one[0].generation, one[0].commit), default=None)

    def _parts(self, file: int) -> Iterator[bytearray]:
        count = _FIELDS.unpack(os.pread(file, _FIELDS.size, 0))[-1]
        table = os.pread(file, count * _LENGTH.size, _HEAD_BYTES)
        at = _HEAD_BYTES + len(table)
        for (length,) in _LENGTH.iter_unpack(table):
            part = bytearray(length)
            _read(file, part, at)
            at += length
            yield part

    def _lock(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(self._files[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if time.monotonic() >= until:
                    return False
                time.sleep(_POLL_SECONDS)

    def _unlock(self) -> None:
        fcntl.flock(self._files[0], fcntl.LOCK_UN)


def _fill(file: int, head: CopyHead, lengths: Sequence[int], pieces: Iterable[Any]) -> None:
    os.pwrite(file, bytes(_HEAD_BYTES), 0)
    table = b"".join(_LENGTH.pack(length) for length in lengths)
    end = _write(file, table, _HEAD_BYTES)
    expected = end + sum(lengths)
    for piece in pieces:
        end = _write(file, piece, end)
    if end != expected:
        raise ValueError(f"a copy of {expected} bytes came with {end}")
    os.truncate(file, end)
    fields = _FIELDS.pack(_MAGIC, *head, len(lengths))
    os.pwrite(file, fields + _CHECK.pack(zlib.crc32(fields)), 0)


def _write(file: int, piece: Any, at: int) -> int:
    view = memoryview(piece).cast("B")
    while view:
        done = os.pwrite(file, view[:_MOST_AT_ONCE], at)
        view, at = view[done:], at + done
    return at


def _read(file: int, part: bytearray, at: int) -> None:
    view = memoryview(part)
    while view:
        done = os.preadv(file, [view[:_MOST_AT_ONCE]], at)
        if done == 0:
            raise ValueError("a copy of a commit is shorter than its head says")
        view, at = view[done:], at + done
