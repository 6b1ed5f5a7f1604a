"""Shows the output of many ranks on one terminal, each line behind its rank."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import BinaryIO

# A line that is not finished is shown after this long, so that prompts and progress bars appear ...
PARTIAL_SECONDS = 0.1
# ... and may interrupt the unfinished line of another rank after this long.
TAKEOVER_SECONDS = 1.0

# Without a line end for this long a line is cut, so that binary output cannot fill the memory.
_MAX_LINE = 1 << 20


@dataclass
class _Sink:
    """One file that output goes to, and whose line is unfinished there."""

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
    at_start: bool = True  # the cursor stands at the beginning of a line


class Merger:
    """Merges streams line by line.

    A line that ends in a carriage return is a progress bar's: it stays where it is, and the next
    one overwrites it, as long as nobody else writes. One thread; owns nothing.
    """

    def __init__(self, stdout: BinaryIO, stderr: BinaryIO, *, timestamps: bool = False) -> None:
        out = _Sink(stdout)
        err = out if _same_file(stdout, stderr) else _Sink(stderr)
        self._sinks = {"stdout": out, "stderr": err}
        self._timestamps = timestamps
        self._streams: list[Stream] = []

    def add(self, rank: int, name: str) -> Stream:
        """A new stream: ``stdout`` or ``stderr`` of a rank."""
        stream = Stream(rank, name, self._sinks[name])
        self._streams.append(stream)
        return stream

    def feed(self, stream: Stream, data: bytes, now: float) -> None:
        """Takes what a rank wrote, and shows the lines that are whole."""
        if not stream.pending:
            stream.since = now
        stream.pending += data
        while True:
            end = _segment_end(stream.pending)
            if end == 0 and len(stream.pending) > _MAX_LINE:
                end = _MAX_LINE
            if end == 0:
                break
            segment = bytes(stream.pending[:end])
            del stream.pending[:end]
            stream.since = now
            self._write(stream, segment)
        stream.sink.file.flush()

    def tick(self, now: float) -> float | None:
        """Shows unfinished lines that have waited long enough.

        Returns:
            When to be called again even if nothing arrives, or None.
        """
        later: list[float] = []
        for stream in self._streams:
            if not _showable(stream.pending):
                continue
            free = stream.sink.owner in (None, stream)
            due = stream.since + (PARTIAL_SECONDS if free else TAKEOVER_SECONDS)
            if due > now:
                later.append(due)
                continue
            count = _showable(stream.pending)
            segment = bytes(stream.pending[:count])
            del stream.pending[:count]
            self._write(stream, segment)
            stream.sink.file.flush()
        return min(later, default=None)

    def finish(self, stream: Stream) -> None:
        """The stream has ended: shows what is left of it, as a line of its own."""
        if stream.pending:
            self._write(stream, bytes(stream.pending))
            stream.pending.clear()
        if stream.sink.owner is stream:
            self._end_line(stream.sink)
        stream.sink.file.flush()
        self._streams.remove(stream)

    def note(self, text: str) -> None:
        """Shows a message of the launcher itself on the error stream."""
        sink = self._sinks["stderr"]
        self._end_line(sink)
        sink.file.write(text.encode() + b"\n")
        sink.file.flush()

    def _write(self, stream: Stream, segment: bytes) -> None:
        sink = stream.sink
        body = segment.rstrip(b"\r\n")
        end = segment[len(body) :]
        if not body and end == b"\r":
            # A bar that begins with the return: back to the start of our own unfinished line.
            if sink.owner is stream and not stream.at_start:
                sink.file.write(b"\r")
                stream.at_start = True
            return
        if sink.owner is not stream:
            self._end_line(sink)
            stream.at_start = True
        if stream.at_start:
            sink.file.write(self._prefix(stream))
        sink.file.write(segment)
        if end.endswith(b"\n"):
            sink.owner, stream.at_start = None, True
        else:
            sink.owner, stream.at_start = stream, end == b"\r"

    def _end_line(self, sink: _Sink) -> None:
        if sink.owner is not None:
            sink.file.write(b"\n")
            sink.owner.at_start = True
            sink.owner = None

    def _prefix(self, stream: Stream) -> bytes:
        stamp = time.asctime() if self._timestamps else ""
        return f"{stamp}[{stream.rank}]<{stream.name}>:".encode()


def _segment_end(pending: bytearray) -> int:
    """Where the first whole line ends, its line end or carriage return included; 0: nowhere."""
    newline = pending.find(b"\n")
    back = pending.find(b"\r", 0, newline if newline >= 0 else len(pending))
    if back < 0:
        return newline + 1
    if back + 1 == len(pending):
        return 0  # a line feed may follow
    return newline + 1 if back + 1 == newline else back + 1


def _showable(pending: bytearray) -> int:
    """How much of an unfinished line can be shown without cutting a UTF-8 character in two."""
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
