"""Merges the output of many ranks for one terminal, each line with its rank as prefix."""

from __future__ import annotations

import bisect
import os
import re
import time
from collections import Counter, deque
from collections.abc import Container
from dataclasses import dataclass, field
from typing import BinaryIO

from tfring.texts.ranks import rank_ranges

# After so long an unfinished line is written, so that prompts and progress bars appear.
PARTIAL_SECONDS = 0.1
# After so long it is written even if another rank's unfinished line is on the terminal.
TAKEOVER_SECONDS = 1.0
# For so long a line waits for the same line of other ranks, and at most so many lines and bytes do.
MERGE_SECONDS = 0.2
# Where one stream alone goes on, without a pause of so long, its lines do not wait.
ALONE_SECONDS = 1.0
_MAX_HELD_LINES = 1000
_MAX_HELD_BYTES = 4 << 20

# What TensorFlow's C++ code logs with level INFO: which instructions and devices it has found, that
# it compiles with XLA; and what its logging library says before it is set up. Warnings, errors and
# what Python logs look otherwise.
_SOURCE = rb"[\w./-]+\.(?:cc|h|cu|cuh|cpp):\d+\] "
_INFO = re.compile(
    rb"I\d{4} [\d:.]+ +\d+ " + _SOURCE + rb"|"
    rb"\d{4}-\d\d-\d\d [\d:.]+: I " + _SOURCE + rb"|"
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR|"
    rb"To enable the following instructions: .* rebuild TensorFlow with "
)

# What differs at the beginning of a line that several ranks log: time, rank, process or thread.
_VARYING = re.compile(
    rb"\[tfring\] (?P<time>[\d:.]+Z )?(?:rank \d+ )?(?:\(host [^)]*\) )?(?=[a-z]+: )|"
    rb"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?|"
    rb"[IWEF]\d{4} [\d:.]+ +\d+ (?=[\w./-]+:\d+\])"
)

# Longer lines are cut, so that binary output without line ends cannot fill the memory.
_MAX_LINE = 1 << 20


@dataclass(eq=False)
class _Sink:
    """A file that output is written to, and the stream with an unfinished line in it."""

    file: BinaryIO
    owner: Stream | None = None


@dataclass(eq=False)
class Stream:
    """One output stream of one rank."""

    rank: int
    name: str
    sink: _Sink
    pending: bytearray = field(default_factory=bytearray)
    since: float = 0.0
    at_start: bool = True  # the cursor is at the beginning of a line
    hidden: bool = False  # nothing of it is written
    label: str = ""  # stands for the rank of a process that has none; `rank` is then below 0


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
    of each stream stay in order. Between stdout and stderr of a rank there is no order to keep:
    they come through two pipes.
    """

    def __init__(self) -> None:
        self.groups: deque[_Group] = deque()
        self._bytes = 0  # of their lines
        self._same: dict[tuple[str, bytes], list[_Group]] = {}  # ascending by number
        self._last: dict[Stream, int] = {}  # the last group with a line of the stream
        self._next = 0
        self._alone: Stream | None = None
        self._alone_at = 0.0  # when it had its last line

    def add(self, stream: Stream, line: bytes, now: float) -> None:
        """Adds a complete line of a rank.

        It does not wait if the line before it came from this stream alone and not long ago: where
        one rank speaks for all, its lines appear at once.
        """
        if self._alone is not stream or now > self._alone_at + ALONE_SECONDS:
            self._alone = None
        self._alone_at = now
        due = now + (MERGE_SECONDS if self._alone is None else 0.0)
        varying = _VARYING.match(line)
        key = (stream.name, line[:1] + line[varying.end() :] if varying else line)
        same = self._same.setdefault(key, [])
        last = self._last.get(stream, -1)
        place = bisect.bisect_right(same, last, key=lambda group: group.number)
        if place == len(same):
            same.append(_Group(self._next, key, due, line))
            self.groups.append(same[-1])
            self._bytes += len(line)
            self._next += 1
        same[place].streams.append(stream)
        self._last[stream] = same[place].number

    def take(self) -> _Group:
        """Removes the first group and returns it."""
        group = self.groups.popleft()
        self._bytes -= len(group.line)
        same = self._same[group.key]
        same.pop(0)
        if not same:
            del self._same[group.key]
        for stream in group.streams:
            if self._last[stream] == group.number:
                del self._last[stream]
        speaking = {*group.streams, *self._last}
        self._alone = speaking.pop() if len(speaking) == 1 else None
        return group

    def full(self) -> bool:
        """Whether no more lines are to wait."""
        return len(self.groups) > _MAX_HELD_LINES or self._bytes > _MAX_HELD_BYTES

    def last_of(self, rank: int) -> int:
        """Returns the number of the last group with a line of a rank, or -1."""
        return max((n for stream, n in self._last.items() if stream.rank == rank), default=-1)


class OutputMerger:
    """Merges streams line by line.

    A line that several ranks write within MERGE_SECONDS is printed once, with all their ranks. What
    is no line yet, such as a prompt or a progress bar, does not wait, nor what stands before it.

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
        info_ranks: Container[int] | None = (0,),
        merge_lines: bool = True,
        ranks: Container[int] | None = None,
    ) -> None:
        """Sets where the output goes.

        Args:
            stdout: file for the ranks' standard output.
            stderr: file for their error output; may be the same.
            timestamps: print the time before every line.
            info_ranks: for whom what TensorFlow logs with level INFO is printed; None: for all.
            merge_lines: print a line that several ranks write at the same time once.
            ranks: whose output is printed; None: that of all.
        """
        out = _Sink(stdout)
        err = out if _same_file(stdout, stderr) else _Sink(stderr)
        self._sinks = {"stdout": out, "stderr": err}
        self._timestamps = timestamps
        self._info_ranks = info_ranks
        self._streams: list[Stream] = []
        self._held = _HeldLines()
        self._merge_lines = merge_lines
        self._ranks = ranks

    def add(self, rank: int, name: str) -> Stream:
        """Adds ``stdout`` or ``stderr`` of a rank."""
        hidden = self._ranks is not None and rank not in self._ranks
        stream = Stream(rank, name, self._sinks[name], hidden=hidden)
        if not hidden:
            self._streams.append(stream)
        return stream

    def assign(self, stream: Stream, rank: int, label: str = "") -> None:
        """Gives a stream's process another `rank`; it has none if -1, and `label` stands for it."""
        self.release_all()
        hidden = self._ranks is not None and rank not in self._ranks
        if hidden and not stream.hidden:
            self.finish(stream)
        elif stream.hidden and not hidden:
            self._streams.append(stream)
        stream.rank, stream.label, stream.hidden = rank, label, hidden

    def feed(self, stream: Stream, data: bytes, now: float) -> None:
        """Takes output of a rank and writes the lines that are complete."""
        if stream.hidden:
            return
        if not stream.pending:
            stream.since = now
        stream.pending += data
        while True:
            end = _line_length(stream.pending)
            if end == 0 and len(stream.pending) > _MAX_LINE:
                end = _MAX_LINE
            if end == 0:
                break
            line = bytes(stream.pending[:end])
            del stream.pending[:end]
            stream.since = now
            if self._left_out(stream, line):
                continue
            begins = stream.at_start and stream.sink.owner is not stream
            if self._merge_lines and not stream.label and begins and line.endswith(b"\n"):
                self._held.add(stream, line, now)
            else:
                self._release(self._held.last_of(stream.rank))
                self._write(stream, line)
        self._release_ready(now)
        stream.sink.file.flush()

    def tick(self, now: float) -> float | None:
        """Writes lines that have waited long enough: for other ranks, or for their ends.

        Returns:
            When to call it again even if no output arrives, or None.
        """
        self._release_ready(now)
        later: list[float] = []
        for stream in self._streams:
            if not _printable_length(stream.pending):
                continue
            free = stream.sink.owner in (None, stream)
            due = stream.since + (PARTIAL_SECONDS if free else TAKEOVER_SECONDS)
            if due > now:
                later.append(due)
                continue
            count = _printable_length(stream.pending)
            line = bytes(stream.pending[:count])
            del stream.pending[:count]
            self._release(self._held.last_of(stream.rank))
            self._write(stream, line)
            stream.sink.file.flush()
        later += [group.due for group in self._held.groups][:1]
        return min(later, default=None)

    def finish(self, stream: Stream) -> None:
        """Ends a stream: writes the rest of it and ends its line."""
        if stream.hidden:
            return
        if stream.pending:
            self._release(self._held.last_of(stream.rank))
            self._write(stream, bytes(stream.pending))
            stream.pending.clear()
        if stream.sink.owner is stream:
            self._end_line(stream.sink)
        stream.sink.file.flush()
        self._streams.remove(stream)
        if not self._streams:
            self.release_all()

    def note(self, text: str) -> None:
        """Writes a message of the launcher itself to the error stream."""
        self.release_all()
        sink = self._sinks["stderr"]
        self._end_line(sink)
        sink.file.write(text.encode("utf-8", "surrogateescape") + b"\n")
        sink.file.flush()

    def release_all(self) -> None:
        """Writes all complete lines that wait for other ranks."""
        if self._held.groups:
            self._release(self._held.groups[-1].number)

    def _release(self, number: int) -> None:
        """Writes the groups up to this one."""
        groups: list[_Group] = []
        while self._held.groups and self._held.groups[0].number <= number:
            groups.append(self._held.take())
        self._write_groups(groups)

    def _release_ready(self, now: float) -> None:
        """Writes the first groups, as far as they need not wait any longer."""
        waiting = self._held.groups
        if not waiting:
            return
        writers = Counter(stream.name for stream in self._streams)
        groups: list[_Group] = []
        while waiting and (
            waiting[0].due <= now
            or len(waiting[0].streams) >= writers[waiting[0].key[0]]
            or self._held.full()
        ):
            groups.append(self._held.take())
        self._write_groups(groups)

    def _write_groups(self, groups: list[_Group]) -> None:
        for group in groups:
            self._write_group(group)
        for sink in {group.streams[0].sink for group in groups}:
            sink.file.flush()

    def _write_group(self, group: _Group) -> None:
        stream = group.streams[0]
        if len(group.streams) == 1:
            self._write(stream, group.line)
        else:
            self._end_line(stream.sink)
            line = _without_rank(group.line)
            body = line.rstrip(b"\r\n")
            ranks = [one.rank for one in group.streams]
            count = f" ({len(ranks)} ranks)".encode()
            prefix = self._prefix(rank_ranges(ranks), stream.name)
            stream.sink.file.write(prefix + body + count + line[len(body) :])

    def _write(self, stream: Stream, line: bytes) -> None:
        sink = stream.sink
        body = line.rstrip(b"\r\n")
        end = line[len(body) :]
        if not body and end == b"\r":
            # A bar that begins with a carriage return: back to the start of its unfinished line.
            if sink.owner is stream and not stream.at_start:
                sink.file.write(b"\r")
                stream.at_start = True
            return
        if sink.owner is not stream:
            self._end_line(sink)
            stream.at_start = True
        if stream.at_start:
            sink.file.write(self._prefix(stream.label or str(stream.rank), stream.name))
        sink.file.write(line)
        if end.endswith(b"\n"):
            sink.owner, stream.at_start = None, True
        else:
            sink.owner, stream.at_start = stream, end == b"\r"

    def _left_out(self, stream: Stream, line: bytes) -> bool:
        wanted = self._info_ranks is None or stream.rank in self._info_ranks
        left_out = stream.name == "stderr" and not wanted
        begins = stream.at_start or stream.sink.owner is not stream
        return left_out and begins and _INFO.match(line) is not None

    def _end_line(self, sink: _Sink) -> None:
        if sink.owner is not None:
            sink.file.write(b"\n")
            sink.owner.at_start = True
            sink.owner = None

    def _prefix(self, ranks: str, name: str) -> bytes:
        stamp = time.asctime() if self._timestamps else ""
        return f"{stamp}[{ranks}]<{name}>:".encode()


def _without_rank(line: bytes) -> bytes:
    """Returns a line that stands for several ranks: a log line of tfring names none of them."""
    found = _VARYING.match(line)
    if found is None or not line.startswith(b"[tfring] "):
        return line
    return b"[tfring] " + (found["time"] or b"") + line[found.end() :]


def _line_length(pending: bytearray) -> int:
    """Returns the length of the first complete line with its line end or carriage return, or 0."""
    newline = pending.find(b"\n")
    back = pending.find(b"\r", 0, newline if newline >= 0 else len(pending))
    if back < 0:
        return newline + 1
    if back + 1 == len(pending):
        return 0  # a line feed may follow
    return newline + 1 if back + 1 == newline else back + 1


def _printable_length(pending: bytearray) -> int:
    """Returns the length of an unfinished line without an incomplete UTF-8 character at its end."""
    count = len(pending)
    for back in range(1, min(4, count) + 1):
        byte = pending[count - back]
        if byte & 0xC0 == 0x80:
            continue
        length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return count if length <= back else count - back
    return count


def _same_file(a: BinaryIO, b: BinaryIO) -> bool:
    try:
        return os.path.sameopenfile(a.fileno(), b.fileno())
    except (OSError, ValueError, AttributeError):
        return a is b
