"""One rank from the launcher's side: its output, and how it ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tfring.launch.agents.held_output import HOLD_SECONDS, HeldOutput
from tfring.launch.agents.host import Host
from tfring.launch.hosts.placement import Slot
from tfring.launch.signals import signal_name
from tfring.runtime.texts.errors import HEADER

_TAIL_BYTES = 64 << 10
_TRACEBACK = HEADER.encode()


@dataclass
class RankProcess:
    """A rank that runs or has run."""

    slot: Slot
    connection: Host  # to the agent of its host
    tail: bytearray = field(default_factory=bytearray)
    last_words: bytearray = field(default_factory=bytearray)  # as tail, since it last went on
    outlived: bytes = b""  # what it wrote before that
    held: HeldOutput = field(default_factory=HeldOutput)  # of its error output, not shown yet
    traceback_at: float | None = None  # when the last traceback on its error output began
    ended_at: float | None = None
    code: int | None = None  # as in subprocess: negative for a signal
    ended_by_launcher: bool = False
    replaces: int | None = None  # the worker of an elastic job that had its slot before
    # Takes copies of its output: the stream's name, and data.
    copy: Callable[[str, bytes], None] | None = None

    @property
    def rank(self) -> int:
        """Its rank."""
        return self.slot.rank

    @property
    def facts(self) -> dict[str, Any]:
        """What the agent has told of it: `pid`, `cores`, `code`, `oom`; see protocol.py."""
        return self.connection.facts.get(self.rank, {})

    def signal(self, number: int) -> None:
        """Passes a signal to the rank's process group."""
        self.connection.signal(self.rank, number)

    def lost(self) -> str:
        """Returns why its end is unknown; "" if it is known."""
        return self.connection.lost(self.rank)

    def record_output(self, name: str, data: bytes, now: float) -> None:
        """Keeps the end of the error output; copies all output if that was asked for."""
        if self.copy is not None:
            self.copy(name, data)
        if name != "stderr":
            return
        before = bytes(self.tail[-len(_TRACEBACK) :])
        if _TRACEBACK in before + data and _TRACEBACK not in before:
            self.traceback_at = now
        for kept in (self.tail, self.last_words):
            kept += data
            del kept[:-_TAIL_BYTES]

    def goes_on(self) -> None:
        """Notes that tracebacks so far have not ended it, unless it soon ends as Python does."""
        self.outlived, self.last_words = bytes(self.last_words), bytearray()

    def error_output(self) -> bytes:
        """Returns what it wrote at its end."""
        if self._has_outlived():
            return bytes(self.last_words)
        if self._has_another() or not self.outlived:
            return self.held.kept or bytes(self.last_words)
        return self.outlived

    def _has_another(self) -> bool:
        """Whether there is a traceback since it last went on."""
        return _TRACEBACK in self.last_words

    def _has_outlived(self) -> bool:
        """Whether its last traceback has not ended it."""
        if not self.outlived or self._has_another():
            return False
        assert self.traceback_at is not None
        ended_at = self.ended_at if self.ended_at is not None else self.traceback_at
        return self.code != 1 or ended_at - self.traceback_at > HOLD_SECONDS

    def failed(self) -> bool:
        """Whether it ended with an error."""
        return self.code is not None and self.code != 0

    def exit_code(self) -> int:
        """The exit code that a shell would report."""
        assert self.code is not None
        return 128 - self.code if self.code < 0 else self.code

    def failed_at(self) -> float:
        """Estimates when its failure began.

        A Python rank fails when its traceback appears, and may need seconds from there to its end,
        while other ranks already fail because of it. A killed rank ends only after the kernel has
        freed its memory, and other ranks may see its connections close before that.
        """
        assert self.ended_at is not None
        if self.code is not None and (self.code < 0 or self.code > 128):
            return self.ended_at - 1.0
        if self.traceback_at is not None and not self._has_outlived():
            return self.traceback_at
        return self.ended_at

    def out_of_memory(self) -> str:
        """Returns the evidence that it ran out of memory; "" if there is none."""
        return str(self.facts.get("oom") or "")

    def describe_end(self) -> str:
        """``exit code 3`` or ``signal 9 (SIGKILL)``, with what is known about it."""
        assert self.code is not None
        why = self.lost() or self.out_of_memory()
        end = f"exit code {self.code}"
        if self.code < 0:
            name = signal_name(-self.code)
            end = f"signal {-self.code} ({name})" if name.startswith("SIG") else name
        return f"{end} ({why})" if why else end
