"""The output of this process, written so that a terminal that stands still holds up nothing."""

from __future__ import annotations

import codecs
import contextlib
import io
import sys
from typing import BinaryIO, TextIO, cast

from tfring.launch.output.writer import BackgroundWriter, Descriptor, QueuedFile


class Terminal:
    """Standard output and error output of this process, each with a writer of its own.

    Other streams may take their places. A stream without a descriptor, as a notebook has, is
    written to directly. Used by one thread, in a `with` statement.
    """

    def __init__(self, stdout: TextIO | None = None, stderr: TextIO | None = None) -> None:
        self._queued: list[tuple[QueuedFile, BackgroundWriter]] = []
        self.stdout = self._queue(sys.stdout if stdout is None else stdout)
        self.stderr = self._queue(sys.stderr if stderr is None else stderr)

    def _queue(self, stream: TextIO | None) -> BinaryIO:
        if stream is None:  # it was closed when this process began
            return io.BytesIO()
        stream.flush()
        file = getattr(stream, "buffer", None)
        if file is None:
            return cast(BinaryIO, _TextAsBytes(stream))
        try:
            target = Descriptor(file.fileno())
        except OSError:
            return cast(BinaryIO, file)
        writer = BackgroundWriter()
        queued = QueuedFile(writer, target, "the output")
        self._queued.append((queued, writer))
        return cast(BinaryIO, queued)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Waits until all is written, as long as something moves."""
        for file, writer in self._queued:
            file.flush()
            if writer.drain():
                file.flush()  # says what is missing at the end
            writer.close()
        self._tell_left_out()
        self._queued.clear()

    def _tell_left_out(self) -> None:
        """Says on the error output what of the output could not be written, as to a full disk."""
        if len(self._queued) == 2 and (text := self._queued[0][0].left_out()):
            with contextlib.suppress(OSError):
                Descriptor(self._queued[1][0].fileno()).write(f"{text}\n".encode())


class _TextAsBytes:
    """A binary stream that writes to a text stream without one, as a notebook has.

    What is written may end within a character: the rest of it comes with the next piece.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def write(self, data: bytes) -> int:
        self._stream.write(self._decoder.decode(data))
        return len(data)

    def flush(self) -> None:
        self._stream.flush()
