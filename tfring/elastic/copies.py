"""Copies of commits that one process or one host alone holds, so that its loss loses none.

Where ranks of several hosts train, each holds every commit, and nothing is copied. docs/adr/0079
says what is guaranteed.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from tfring.elastic.commit_memory import CommitMemory, CopyHead
from tfring.elastic.copy_transfer import CopyReceiver, CopySender, may_come
from tfring.elastic.process import ElasticProcess
from tfring.elastic.progress import Progress, hash_of
from tfring.elastic.records import Position, Record
from tfring.job.store import StoreError
from tfring.runtime.exceptions import described
from tfring.runtime.settings.environment import read_settings

_log = logging.getLogger("tfring")

# A part of the time beyond which copies are worth a word, once there is something to measure.
_MUCH = 0.2
_MEASURED_SECONDS = 60.0


class Part(NamedTuple):
    """A part of what a commit holds."""

    length: int  # in bytes
    read: Callable[[], Any]  # returns the bytes


def part_of(data: bytes | memoryview) -> Part:
    """Returns bytes, which nobody changes before they are read, as a part."""
    return Part(len(data), lambda: data)


class Copied(Protocol):
    """A state, as far as it is copied."""

    _progress: Progress

    def save(self) -> None:
        """See `State.save`."""

    def restore(self) -> None:
        """See `State.restore`."""

    def _describe(self) -> list[str]: ...

    def _pack(self) -> list[Part] | None: ...

    def _unpack(self, parts: Iterator[bytearray]) -> None: ...


class Copies:
    """What this worker of an elastic job copies, and what it takes of copies."""

    def __init__(self, process: ElasticProcess) -> None:
        self._process = process
        self._memory: CommitMemory | None = None  # of this host; None: nothing is copied
        if process.worker.memory and read_settings(os.environ).commit_copies != "off":
            with contextlib.suppress(OSError):
                self._memory = CommitMemory(process.worker.memory)
        self._contents = 0  # of the state
        self._alone = False  # whether this is the only rank
        self._sender: CopySender | None = None  # where all ranks are on one host
        self._since = self._spent = 0.0
        self._told = False  # that copies take long

    @contextlib.contextmanager
    def waiting(self, state: Copied) -> Iterator[None]:
        """Keeps commits of ranks on other hosts, while this worker, which is new, waits.

        It reports to the coordinator from which commit this worker could continue. At the end it
        frees the port for copies: the worker may need it to connect with a generation.
        """
        self._contents = hash_of(state._describe())
        receiver = None
        if self._memory is not None:
            self._claim(self._memory.newest())
            receiver = self._receiver()
        try:
            yield
        finally:
            if receiver is not None:
                receiver.close()

    def _receiver(self) -> CopyReceiver | None:
        worker = self._process.worker
        if not may_come(worker):
            return None
        try:
            return CopyReceiver(worker, self._claim)
        except (StoreError, OSError) as error:
            no_port = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            level = logging.DEBUG if no_port else logging.WARNING
            _log.log(level, "no commits of other hosts are kept here: %s", described(error))
            return None

    def take(self, state: Copied, record: Record) -> None:
        """Loads the copy of this host, if this worker is new and no member is further."""
        if self._memory is None or state._progress.lineage != 0:
            return
        try:
            with self._memory.reading() as found:
                if found is None:
                    return
                head, parts = found
                described_here = hash_of(state._describe())
                if head.commit < record.position.commit or head.contents != described_here:
                    return
                state._unpack(parts)
        except Exception as error:  # whatever reading, unpickling and assigning may raise
            state.restore()
            _log.warning("the copy of a commit cannot be used: %s", described(error))
            return
        counted = state._progress.counted
        state._progress = Progress(
            head.lineage, head.commit, head.step, head.step, counted, copied=True
        )
        state.save()
        _log.info(
            "worker %d continues from commit %d: its host has kept a copy",
            self._process.worker.worker,
            head.commit,
        )

    def begin(self, state: Copied, record: Record) -> None:
        """Training begins in a generation, in which its ranks now have one state."""
        if self._memory is None:
            return
        worker = self._process.worker
        one_host = len({member.host for member in record.members}) == 1
        self._contents = hash_of(state._describe())
        self._alone = len(record.members) == 1
        self._stop_sending(free=not one_host)
        if one_host and record.members[0].worker == worker.worker:
            try:
                self._sender = CopySender(worker)
            except StoreError as error:
                _log.warning("commits are not copied to other hosts: %s", described(error))
        if not self._alone:
            self._memory.clear()
        self._since, self._spent = time.monotonic(), 0.0
        self.keep(state)

    def keep(self, state: Copied) -> None:
        """Copies a commit that no other process, or no other host has. A failure is a warning."""
        if self._memory is None or not (self._alone or self._sender is not None):
            return
        start, at = time.monotonic(), state._progress
        what = "process" if self._alone else "host"
        head = CopyHead(self._process.generation, at.lineage, at.commit, at.step, self._contents)
        try:
            parts = state._pack()
            if parts is None:
                self._stop()
                return
            lengths = [part.length for part in parts]
            if self._alone:
                self._memory.put(head, lengths, (part.read() for part in parts))
            if self._sender is not None:
                self._sender.send(head, lengths, (part.read() for part in parts))
        except Exception as error:  # whatever pickling and writing may raise
            self._stop()
            _log.warning(
                "commits are not copied until the ranks change, and are lost with this %s: %s",
                what,
                described(error),
            )
        self._count(start, time.monotonic())

    def end(self) -> None:
        """Is called when `elastic.run` ends."""
        self._stop()
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def _stop(self) -> None:
        self._alone = False
        self._stop_sending(free=False)

    def _stop_sending(self, *, free: bool) -> None:
        if self._sender is not None:
            self._sender.close(free=free)
            self._sender = None

    def _claim(self, head: CopyHead | None) -> None:
        """Tells the coordinator which commit this host has a copy of."""
        fits = head is not None and head.contents == self._contents
        self._process.position = Position(head.commit, head.step) if head and fits else Position()
        self._process.link.committed(self._process.position)

    def _count(self, start: float, end: float) -> None:
        """Says once that copies take a large part of the time."""
        self._spent += end - start
        whole = end - self._since
        if not self._told and whole > _MEASURED_SECONDS and self._spent > _MUCH * whole:
            self._told = True
            _log.warning(
                "copies of commits take %.0f %% of the time, because no other %s has the state. "
                "Commit less often (batches_per_commit), or set TFRING_COMMIT_COPIES=off",
                100 * self._spent / whole,
                "process" if self._alone else "host",
            )
