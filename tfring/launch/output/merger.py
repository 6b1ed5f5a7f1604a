"""Merges the output of many ranks for one terminal, each line with its rank in front."""

from __future__ import annotations

import bisect
import os
import time
from collections import Counter, deque
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

from tfring.launch.output.lines import (
    printable_length,
    without_info,
    without_rank,
    without_varying,
)
from tfring.runtime.texts.ranks import rank_ranges
from tfring.runtime.texts.screen import colourful

# An unfinished line is written after this time, so that prompts and progress bars appear.
PARTIAL_SECONDS = 0.1
# And after this one, if another rank's unfinished line is on the terminal.
TAKEOVER_SECONDS = 1.0
# A line waits this long for the same line of other ranks. At most this many different lines wait;
# if more come in that time, none does.
MERGE_SECONDS = 0.2
MAX_HELD_LINES = 1000
# Longer lines are cut, so that binary output without line ends cannot fill the memory.
_MAX_LINE = 1 << 20
# Of the names of ranks on a terminal: green, yellow, blue, magenta and cyan.
_COLOURS = (32, 33, 34, 35, 36)


@dataclass(eq=False)
class _Sink:
    """A file that output is written to, and the stream with an unfinished line in it."""

    file: BinaryIO
    colours: bool = False
    owner: Stream | None = None


@dataclass(eq=False)
class Stream:
    """One output stream of one rank."""

    rank: int
    name: str
    sink: _Sink
    pending: bytes = b""  # an unfinished line
    since: float = 0.0  # when it began
    at_start: bool = True  # the cursor is at the beginning of a line
    hidden: bool = False  # nothing of it is written
    label: str = ""  # stands for the rank of a process that has none; `rank` is then below 0
    last: int = -1  # the number of the last group with a line of it

    def continues(self) -> bool:
        """Whether what it writes next belongs to a line that is on the terminal."""
        return self.sink.owner is self and not self.at_start


@dataclass(eq=False)
class _Group:
    """A line that one rank or several have written and that is not printed yet."""

    number: int
    key: tuple[str, bytes]  # the stream's name, and the line without what varies
    due: float
    line: bytes  # of the first of the ranks
    streams: list[Stream] = field(default_factory=list)


class _HeldLines:
    """Lines that wait for the same line of other ranks, in the order in which they are printed.

    A line joins a group only behind all groups that hold earlier lines of its stream, so the lines
    of each stream stay in order. Between stdout and stderr of a rank there is no order to keep.
    """

    def __init__(self) -> None:
        self.groups: deque[_Group] = deque()
        self._same: dict[tuple[str, bytes], list[_Group]] = {}  # ascending by number
        self._next = 0

    def add(self, stream: Stream, line: bytes, due: float) -> bool:
        """Adds a complete line of a rank; returns whether it is in a group of its own."""
        key = (stream.name, without_varying(line))
        same = self._same.setdefault(key, [])
        place = bisect.bisect_right(same, stream.last, key=lambda group: group.number)
        new = place == len(same)
        if new:
            same.append(_Group(self._next, key, due, line))
            self.groups.append(same[-1])
            self._next += 1
        same[place].streams.append(stream)
        stream.last = same[place].number
        return new

    def take(self) -> _Group:
        """Removes the first group and returns it."""
        group = self.groups.popleft()
        same = self._same[group.key]
        same.pop(0)
        if not same:
            del self._same[group.key]
        return group


class OutputMerger:
    """Merges streams line by line.

    While one process alone writes, its lines are printed as they are. When a second one writes,
    each line begins with its rank, as in "1| text". A line that several ranks write within
    MERGE_SECONDS is printed once, with all their ranks. An unfinished line, such as a prompt or a
    progress bar, does not wait, nor what stands before it. Lines that do not wait are handled
    together, as many as have come.

    A line that ends in a carriage return is taken for a progress bar: the next line of the same
    stream overwrites it, unless another stream has written meanwhile. Not thread-safe; the files
    belong to the caller.
    """

    def __init__(
        self,
        stdout: BinaryIO,
        stderr: BinaryIO,
        *,
        timestamps: bool = False,
        tensorflow_info: bool = False,
        merge_lines: bool = True,
        ranks: Container[int] | None = None,
    ) -> None:
        """Sets where the output of ranks goes.

        `timestamps` prints the time before every line. `tensorflow_info` keeps what TensorFlow logs
        with level INFO, and when it starts. Without `merge_lines` every line has its rank and is
        printed for each, so that a program can read them. `ranks` are those whose output is
        printed; None: all.
        """
        out = _Sink(stdout, colourful(stdout))
        err = out if _same_file(stdout, stderr) else _Sink(stderr, colourful(stderr))
        self._sinks = {"stdout": out, "stderr": err}
        self._timestamps = timestamps
        self._tensorflow_info = tensorflow_info
        self._streams: list[Stream] = []
        self._writers: Counter[str] = Counter()  # streams of each name
        self._held = _HeldLines()
        self._merge_lines = merge_lines
        self._ranks = ranks
        self._writer: tuple[int, str] | None = None  # the rank and label of who has written so far
        self._several = not merge_lines  # another one has, too
        self._recent = 0.0  # different lines of late, less MAX_HELD_LINES in MERGE_SECONDS
        self._drained_at = 0.0

    def add(self, rank: int, name: str) -> Stream:
        """Adds ``stdout`` or ``stderr`` of a rank."""
        stream = Stream(rank, name, self._sinks[name], hidden=True)
        self.assign(stream, rank)
        return stream

    def assign(self, stream: Stream, rank: int, label: str = "") -> None:
        """Gives a stream's process another `rank`; it has none if -1, and `label` stands for it."""
        self.release_all()
        hidden = self._ranks is not None and rank not in self._ranks
        if hidden and not stream.hidden:
            self.finish(stream)
        elif stream.hidden and not hidden:
            self._streams.append(stream)
            self._writers[stream.name] += 1
        if self._writer == (stream.rank, stream.label):
            self._writer = (rank, label)
        stream.rank, stream.label, stream.hidden = rank, label, hidden

    def feed(self, stream: Stream, data: bytes, now: float) -> None:
        """Takes output of a rank and writes the lines that are complete."""
        if stream.hidden:
            return
        lines = (stream.pending + data).splitlines(keepends=True)
        unfinished = b""
        # Behind a carriage return a line feed may follow.
        if lines and not lines[-1].endswith(b"\n") and len(lines[-1]) <= _MAX_LINE:
            unfinished = lines.pop()
        if lines or not stream.pending:
            stream.since = now
        stream.pending = unfinished
        if lines := self._wanted(stream, lines):
            if self._waits(stream, lines, now):
                self._hold(stream, lines, now)
            else:
                self._recent += len(lines)
                self._write_now(stream, lines)
        self._release_ready(now)

    def tick(self, now: float) -> float | None:
        """Writes lines that have waited long enough: for other ranks, or for their ends.

        Returns when to call it again even if no output arrives, or None.
        """
        self._release_ready(now)
        later = [group.due for group in self._held.groups][:1]
        for stream in [one for one in self._streams if one.pending]:
            count = printable_length(stream.pending)
            if not count:
                continue
            free = stream.sink.owner in (None, stream)
            due = stream.since + (PARTIAL_SECONDS if free else TAKEOVER_SECONDS)
            if due > now:
                later.append(due)
                continue
            line, stream.pending = stream.pending[:count], stream.pending[count:]
            self._write_now(stream, [line])
            self._flush()
        return min(later, default=None)

    def finish(self, stream: Stream) -> None:
        """Ends a stream: writes the rest of it and ends its line."""
        if stream.hidden:
            return
        if stream.pending:
            self._write_now(stream, [stream.pending])
            stream.pending = b""
        if stream.sink.owner is stream:
            self._end_line(stream.sink)
        self._streams.remove(stream)
        self._writers[stream.name] -= 1
        if not self._streams:
            self.release_all()
        self._flush()

    def note(self, text: str) -> None:
        """Writes a message of the launcher itself to the error stream."""
        self.release_all()
        sink = self._sinks["stderr"]
        self._end_line(sink)
        sink.file.write(text.encode("utf-8", "surrogateescape") + b"\n")
        self._flush()

    def release_all(self) -> None:
        """Writes all complete lines that wait for other ranks."""
        while self._held.groups:
            self._write_group(self._held.take())
        self._flush()

    def _flush(self) -> None:
        for sink in self._sinks.values():
            sink.file.flush()

    def _wanted(self, stream: Stream, lines: list[bytes]) -> list[bytes]:
        """Returns the lines less what TensorFlow says that nobody needs."""
        if self._tensorflow_info or stream.name != "stderr":
            return lines
        begun = 1 if stream.continues() else 0
        return lines[:begun] + without_info(lines[begun:])

    def _waits(self, stream: Stream, lines: list[bytes], now: float) -> bool:
        """Whether lines wait for the same lines of other ranks, unless too many came of late."""
        drained = (now - self._drained_at) * MAX_HELD_LINES / MERGE_SECONDS
        self._recent = max(0.0, min(self._recent, 2.0 * MAX_HELD_LINES) - drained)
        self._drained_at = now
        if not any(line.endswith(b"\n") for line in lines):
            return False  # a progress bar
        several = self._merge_lines and not stream.label and self._writers[stream.name] > 1
        return several and self._recent <= MAX_HELD_LINES

    def _hold(self, stream: Stream, lines: list[bytes], now: float) -> None:
        for line in lines:
            begins = stream.at_start and stream.sink.owner is not stream
            if begins and line.endswith(b"\n"):
                self._recent += self._held.add(stream, line, now + MERGE_SECONDS)
            else:
                self._write_now(stream, [line])

    def _release_ready(self, now: float) -> None:
        """Writes the first groups, as far as they need not wait any longer."""
        waiting = self._held.groups
        while waiting and (
            waiting[0].due <= now
            or len(waiting[0].streams) >= self._writers[waiting[0].key[0]]
            or len(waiting) > MAX_HELD_LINES
        ):
            self._write_group(self._held.take())
        self._flush()

    def _write_group(self, group: _Group) -> None:
        stream = group.streams[0]
        if len(group.streams) == 1:
            self._write(stream, [group.line])
            return
        self._end_line(stream.sink)
        stream.sink.file.write(self._prefix(group.streams) + without_rank(group.line))

    def _write_now(self, stream: Stream, lines: list[bytes]) -> None:
        """Writes lines that do not wait, behind what the same rank has written before them."""
        last = max((one.last for one in self._streams if one.rank == stream.rank), default=-1)
        while self._held.groups and self._held.groups[0].number <= last:
            self._write_group(self._held.take())
        self._write(stream, lines)

    def _write(self, stream: Stream, lines: list[bytes]) -> None:
        begun = lines[:1] if stream.continues() else []
        # A bar that begins with a carriage return goes back to the start of its unfinished line.
        # Elsewhere nothing is left to go back over.
        lines = begun + [line for line in lines[len(begun) :] if line != b"\r"]
        if not lines:
            return
        sink = stream.sink
        if sink.owner is not stream:
            self._end_line(sink)
        prefix = self._prefix([stream])
        sink.file.write(prefix.join(lines if begun else [b"", *lines]))
        stream.at_start = lines[-1].endswith((b"\n", b"\r"))
        sink.owner = None if lines[-1].endswith(b"\n") else stream

    def _end_line(self, sink: _Sink) -> None:
        if sink.owner is not None:
            sink.file.write(b"\n")
            sink.owner.at_start = True
            sink.owner = None

    def _prefix(self, streams: Sequence[Stream]) -> bytes:
        """Returns what stands in front of a line that the processes of `streams` have written."""
        first = streams[0]
        here = (first.rank, first.label)
        self._writer = self._writer or here
        self._several = self._several or self._writer != here or len(streams) > 1
        stamp = f"{time.asctime()} " if self._timestamps else ""
        if not self._several:
            return stamp.encode()
        name = first.label or rank_ranges(stream.rank for stream in streams)
        if first.sink.colours and len(streams) == 1:
            name = f"\x1b[{_COLOURS[first.rank % len(_COLOURS)]}m{name}|\x1b[0m "
        else:
            name = f"{name}| "
        return (stamp + name).encode()


def _same_file(a: BinaryIO, b: BinaryIO) -> bool:
    try:
        return os.path.sameopenfile(a.fileno(), b.fileno())
    except (OSError, ValueError, AttributeError):
        return a is b
