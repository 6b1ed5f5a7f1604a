"""Merges the output of many ranks for one terminal, each line with its rank as prefix."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass, field
from typing import BinaryIO

# After so long an unfinished line is written, so that prompts and progress bars appear.
PARTIAL_SECONDS = 0.1
# After so long it is written even if another rank's unfinished line is on the terminal.
TAKEOVER_SECONDS = 1.0

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

# Longer lines are cut, so that binary output without line ends cannot fill the memory.
_MAX_LINE = 1 << 20


@dataclass
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


class OutputMerger:
    """Merges streams line by line.

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
        all_info: bool = False,
    ) -> None:
        """Sets where the output goes.

        Args:
            stdout: file for the ranks' standard output.
            stderr: file for their error output; may be the same.
            timestamps: print the time before every line.
            all_info: print what TensorFlow logs with level INFO for every rank; otherwise for
                rank 0 only.
        """
        out = _Sink(stdout)
        err = out if _same_file(stdout, stderr) else _Sink(stderr)
        self._sinks = {"stdout": out, "stderr": err}
        self._timestamps = timestamps
        self._all_info = all_info
        self._streams: list[Stream] = []

    def add(self, rank: int, name: str) -> Stream:
        """Adds ``stdout`` or ``stderr`` of a rank."""
        stream = Stream(rank, name, self._sinks[name])
        self._streams.append(stream)
        return stream

    def feed(self, stream: Stream, data: bytes, now: float) -> None:
        """Takes output of a rank and writes the lines that are complete."""
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
            if not self._left_out(stream, line):
                self._write(stream, line)
        stream.sink.file.flush()

    def tick(self, now: float) -> float | None:
        """Writes unfinished lines that have waited long enough.

        Returns:
            When to call it again even if no output arrives, or None.
        """
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
            self._write(stream, line)
            stream.sink.file.flush()
        return min(later, default=None)

    def finish(self, stream: Stream) -> None:
        """Ends a stream: writes the rest of it and ends its line."""
        if stream.pending:
            self._write(stream, bytes(stream.pending))
            stream.pending.clear()
        if stream.sink.owner is stream:
            self._end_line(stream.sink)
        stream.sink.file.flush()
        self._streams.remove(stream)

    def note(self, text: str) -> None:
        """Writes a message of the launcher itself to the error stream."""
        sink = self._sinks["stderr"]
        self._end_line(sink)
        sink.file.write(text.encode() + b"\n")
        sink.file.flush()

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
            sink.file.write(self._prefix(stream))
        sink.file.write(line)
        if end.endswith(b"\n"):
            sink.owner, stream.at_start = None, True
        else:
            sink.owner, stream.at_start = stream, end == b"\r"

    def _left_out(self, stream: Stream, line: bytes) -> bool:
        other = stream.rank != 0 and stream.name == "stderr" and not self._all_info
        begins = stream.at_start or stream.sink.owner is not stream
        return other and begins and _INFO.match(line) is not None

    def _end_line(self, sink: _Sink) -> None:
        if sink.owner is not None:
            sink.file.write(b"\n")
            sink.owner.at_start = True
            sink.owner = None

    def _prefix(self, stream: Stream) -> bytes:
        stamp = time.asctime() if self._timestamps else ""
        return f"{stamp}[{stream.rank}]<{stream.name}>:".encode()


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
