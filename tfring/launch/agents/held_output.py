"""Keeps a rank's last traceback from the screen until it is known whether it ended the rank."""

from __future__ import annotations

from tfring.runtime.texts.errors import HEADER

# So long after its traceback a rank may still run: TensorFlow and the runtime end first, on a busy
# host slowly. What a silent program only logs appears later by as much.
HOLD_SECONDS = 30.0
# A program that writes more after as much time goes on.
_GOES_ON_SECONDS = 1.0
# What may become the first line of one waits for the rest of the line.
_PART_SECONDS = 0.2
_HEADER = HEADER.encode()
_MOST_BYTES = 1 << 20


class HeldOutput:
    """The error output of one rank from the beginning of a traceback on.

    Attributes:
        due: When it has to be released (time.monotonic); None: nothing is held.
        kept: What is held.
    """

    def __init__(self) -> None:
        self.due: float | None = None
        self.kept = b""
        self._last = 0.0  # when it has grown
        self._at_start = True  # what comes next begins a line

    def take(self, data: bytes, now: float) -> bytes:
        """Takes output; returns what is to be shown now.

        Args:
            data: As the rank wrote it.
            now: The time.
        """
        begun = self.kept.startswith(_HEADER)
        self.kept += data
        self._last = now
        if begun:
            return self.release() if len(self.kept) > _MOST_BYTES else b""
        begin = self._begin()
        shown, self.kept = self.kept[:begin], self.kept[begin:]
        if shown:
            self._at_start = shown.endswith(b"\n")
        seconds = HOLD_SECONDS if self.kept.startswith(_HEADER) else _PART_SECONDS
        self.due = now + seconds if self.kept else None
        return shown

    def goes_on(self, now: float) -> bool:
        """Tells whether output of the rank, on any stream, shows that it has gone on.

        Args:
            now: When it comes.
        """
        return self.kept.startswith(_HEADER) and now - self._last >= _GOES_ON_SECONDS

    def release(self) -> bytes:
        """Returns what is held, to be shown or not; from now on nothing is."""
        data, self.kept, self.due = self.kept, b"", None
        self._at_start = data.endswith(b"\n") if data else self._at_start
        return data

    def _begin(self) -> int:
        """Returns where a traceback begins, or may begin at the end."""
        begin = 0 if self._at_start else self.kept.find(b"\n") + 1 or len(self.kept)
        while begin < len(self.kept):
            line = self.kept[begin : begin + len(_HEADER)]
            if _HEADER.startswith(line):
                return begin
            begin = self.kept.find(b"\n", begin) + 1 or len(self.kept)
        return begin
