"""Copies of commits that a single process holds, so that its loss loses none of them.

Where several ranks train, each holds every commit, and nothing is copied. docs/adr/0079 says what
is guaranteed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from tfring.elastic.commit_memory import CommitMemory, CopyHead
from tfring.elastic.progress import Progress, hash_of
from tfring.exceptions import described
from tfring.joining.elastic_process import ElasticProcess
from tfring.membership.records import Position, Record
from tfring.settings.environment import read_settings

_log = logging.getLogger("tfring")

# A part of the time beyond which copies are worth a word, once there is something to measure.
_MUCH = 0.2
_MEASURED_SECONDS = 60.0


class Part(NamedTuple):
    """A part of what a commit holds.

    Attributes:
        length: In bytes.
        read: Returns the bytes.
    """

    length: int
    read: Callable[[], Any]


def part_of(data: bytes | memoryview) -> Part:
    """Returns bytes as a part.

    Args:
        data: Not changed before they are read.
    """
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
    """What this worker of an elastic job keeps, and takes, in the memory of its host."""

    def __init__(self, process: ElasticProcess) -> None:
        """Copies nothing before `begin`.

        Args:
            process: This process.
        """
        self._process = process
        self._memory: CommitMemory | None = None  # None: nothing is copied
        if process.worker.memory and read_settings(os.environ).commit_copies != "off":
            with contextlib.suppress(OSError):
                self._memory = CommitMemory(process.worker.memory)
        self._on = False  # whether commits of the present generation are copied
        self._contents = 0  # of the state
        self._since = self._spent = 0.0
        self._told = False  # that copies take long

    def claim(self, state: Copied) -> None:
        """Tells the coordinator which commit this worker, which is new, could go on from.

        Args:
            state: Of this process.
        """
        head = None if self._memory is None else self._memory.newest()
        if head is not None and head.contents == hash_of(state._describe()):
            self._process.position = Position(head.commit, head.step)
            self._process.link.committed(self._process.position)

    def take(self, state: Copied, record: Record) -> None:
        """Loads the copy of this host, if this worker is new and no member is further.

        Args:
            state: Of this process.
            record: The generation that begins.
        """
        if self._memory is None or state._progress.lineage != 0:
            return
        try:
            with self._memory.reading() as found:
                if found is None or not self._fits(state, found[0], record):
                    return
                head, parts = found
                state._unpack(parts)
        except Exception as error:  # whatever reading, unpickling and assigning may raise
            state.restore()
            _log.warning("the copy of a commit cannot be used: %s", described(error))
            return
        counted = state._progress.counted
        state._progress = Progress(head.lineage, head.commit, head.step, head.step, counted)
        state.save()
        _log.info(
            "worker %d goes on from commit %d, of which its host has kept a copy",
            self._process.worker.worker,
            head.commit,
        )

    def begin(self, state: Copied, record: Record) -> None:
        """Training begins in a generation, in which its ranks now have one state.

        Args:
            state: Of this process.
            record: The generation.
        """
        if self._memory is None:
            return
        self._on = len(record.members) == 1
        self._contents = hash_of(state._describe())
        self._since, self._spent = time.monotonic(), 0.0
        if self._on:
            self.keep(state)
        else:
            self._memory.clear()

    def keep(self, state: Copied) -> None:
        """Copies a commit if no other process has it. A failure is a warning.

        Args:
            state: Just committed.
        """
        if self._memory is None or not self._on:
            return
        start, at = time.monotonic(), state._progress
        try:
            parts = state._pack()
            if parts is None:
                self._on = False
                return
            head = CopyHead(
                self._process.generation, at.lineage, at.commit, at.step, self._contents
            )
            self._memory.put(head, [part.length for part in parts], (part.read() for part in parts))
        except Exception as error:  # whatever pickling and writing may raise
            self._on = False
            _log.warning(
                "commits are not copied until the ranks change, and are lost with this process: %s",
                described(error),
            )
        self._count(start, time.monotonic())

    def _fits(self, state: Copied, head: CopyHead, record: Record) -> bool:
        return head.commit >= record.position.commit and head.contents == hash_of(state._describe())

    def _count(self, start: float, end: float) -> None:
        """Says once that copies take a large part of the time."""
        self._spent += end - start
        whole = end - self._since
        if not self._told and whole > _MEASURED_SECONDS and self._spent > _MUCH * whole:
            self._told = True
            _log.warning(
                "this rank is alone, and copies of its commits take %.0f %% of the time. Commit "
                "less often (batches_per_commit), or set TFRING_COMMIT_COPIES=off",
                100 * self._spent / whole,
            )
