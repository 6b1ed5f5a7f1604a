"""Keeps a rank's last traceback from the screen until it is known whether it ended the rank."""

from __future__ import annotations

from tfring.runtime.texts.errors import HEADER, around_error, is_noise

# So long after its traceback a rank may still run: TensorFlow and the runtime end first, on a busy
# host slowly. What a silent program only logs appears later by as much.
HOLD_SECONDS = 10.0
# A program that writes more so long after the traceback began goes on.
_GOES_ON_SECONDS = 1.0
# What may become the first line of one waits for the rest of the line.
_PART_SECONDS = 0.2
_HEADER = HEADER.encode()
_MOST_BYTES = 1 << 20
# A traceback behind a line with this beginning does not end the rank.
_OTHERS = (b"Exception in thread ", b"Exception ignored in")
_MOST_LINE = 256


class HeldOutput:
    """The error output of one rank from the beginning of a traceback on."""

    def __init__(self) -> None:
        self.due: float | None = None  # when to release it (time.monotonic); None: nothing is held
        self.kept = b""  # what is held
        self._begun = 0.0  # when its traceback came
        self._shown = b"\n"  # the end of what was shown

    def take(self, data: bytes, now: float) -> bytes:
        """Takes output as the rank wrote it; returns what to show now."""
        begun = self.kept.startswith(_HEADER)
        self.kept += data
        if begun:
            return self.release() if len(self.kept) > _MOST_BYTES else b""
        begin = self._begin()
        shown, self.kept = self.kept[:begin], self.kept[begin:]
        self._remember(shown)
        self._begun = now
        seconds = HOLD_SECONDS if self.kept.startswith(_HEADER) else _PART_SECONDS
        self.due = now + seconds if self.kept else None
        return shown

    def goes_on(self, data: bytes, now: float) -> bool:
        """Tells whether output of the rank, on any stream, shows that it has gone on."""
        if not self.kept.startswith(_HEADER) or now - self._begun < _GOES_ON_SECONDS:
            return False
        return not is_noise(data.decode(errors="replace"))

    def release(self) -> bytes:
        """Returns what is held, to be shown or not; from now on nothing is."""
        data, self.kept, self.due = self.kept, b"", None
        self._remember(data)
        return data

    def settle(self) -> bytes:
        """Keeps the last traceback; returns what stands around it, to be shown."""
        text = self.kept.decode(errors="surrogateescape")
        before, behind = (part.encode(errors="surrogateescape") for part in around_error(text))
        self.kept = self.kept[len(before) :]  # who reads it knows its end
        return before + behind

    def _remember(self, shown: bytes) -> None:
        self._shown = (self._shown + shown)[-_MOST_LINE:]

    def _begin(self) -> int:
        """Returns where a traceback begins, or may begin at the end."""
        begin = 0 if self._shown.endswith(b"\n") else self.kept.find(b"\n") + 1 or len(self.kept)
        while begin < len(self.kept):
            line = self.kept[begin : begin + len(_HEADER)]
            if _HEADER.startswith(line) and not self._is_of_others(begin):
                return begin
            begin = self.kept.find(b"\n", begin) + 1 or len(self.kept)
        return begin

    def _is_of_others(self, begin: int) -> bool:
        """Whether the line before a traceback says that it ends no program."""
        before = (self._shown + self.kept[:begin])[-_MOST_LINE:]
        return before.rstrip(b"\n").rpartition(b"\n")[2].startswith(_OTHERS)
