"""The files of --output-filename: all that each rank writes, in files of its own."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from tfring.job.security.files import check_owner, make_file, make_folder
from tfring.launch.output.writer import BackgroundWriter, QueuedFile

KEPT_FILES = 3


class RotatingFile:
    """A file that is put aside when it becomes too long: FILE.1 is the newest of those.

    It belongs to this user, nobody else can read it, and what was there is overwritten. After
    `most_bytes` (0: never) a new file begins, at the end of a line if one ends in what is written
    next. `kept` full files stay.
    """

    def __init__(self, path: Path, most_bytes: int = 0, kept: int = KEPT_FILES) -> None:
        self._path = path
        self._most = most_bytes
        self._kept = kept
        self._size = 0
        self._fd = self._open()

    def _open(self) -> int:
        return make_file(self._path)

    def write(self, data: bytes) -> None:
        """Writes all of `data`; else OSError, whose `written` says how much of it was."""
        begin = 0
        if self._most and self._size and self._size + len(data) > self._most:
            begin = data.find(b"\n") + 1
            self._write(data, 0, begin)
            self._rotate()
        self._write(data, begin, len(data))

    def _write(self, data: bytes, begin: int, end: int) -> None:
        while begin < end:
            try:
                count = os.write(self._fd, memoryview(data)[begin:end])
            except OSError as error:
                error.written = begin  # type: ignore[attr-defined]
                raise
            begin += count
            self._size += count

    def _rotate(self) -> None:
        for number in range(self._kept - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                os.replace(self._aside(number), self._aside(number + 1))
        if self._kept:
            os.replace(self._path, self._aside(1))
        fd = self._open()
        os.close(self._fd)
        self._fd, self._size = fd, 0

    def fileno(self) -> int:
        """Returns its descriptor."""
        return self._fd

    def close(self) -> None:
        """Closes the file."""
        os.close(self._fd)

    def _aside(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


class RankFiles:
    """The files of all ranks, FOLDER/rank.N/stdout and stderr.

    The number of ranks gives the width of the folders' names. For the rest see RotatingFile.
    """

    def __init__(
        self, writer: BackgroundWriter, folder: Path, ranks: int, most_mb: float, kept: int
    ) -> None:
        self._writer = writer
        self._folder = folder
        self._width = len(str(ranks - 1))
        self._most = int(most_mb * 1e6)
        self._kept = kept
        self._files: dict[tuple[int, str], QueuedFile] = {}
        self._in_line: set[tuple[int, str]] = set()  # of those that do not end with a whole line
        self._targets: list[RotatingFile] = []

    def add(self, rank: int, called: str = "") -> None:
        """Makes the files of a rank, in rank.N or a folder that is called otherwise.

        OSError: they cannot be made, or the folder belongs to another user.
        """
        folder = self._folder / (called or f"rank.{rank:0{self._width}d}")
        make_folder(folder)
        for name in ("stdout", "stderr"):
            path = folder / name
            file = RotatingFile(path, self._most, self._kept)
            self._targets.append(file)
            check_owner(folder, file.fileno())
            self._files[rank, name] = QueuedFile(self._writer, file, str(path))

    def write(self, rank: int, name: str, data: bytes) -> None:
        """Takes output of a rank, which is written soon."""
        file = self._files.get((rank, name))
        if file is None or not data:  # it could not be made
            return
        file.write(data)
        file.flush()
        if data.endswith(b"\n"):
            self._in_line.discard((rank, name))
        else:
            self._in_line.add((rank, name))

    def mark(self, rank: int, text: str) -> None:
        """Writes a line of the launcher into the files of a rank, as another life of it begins."""
        line = f"tfring run: {text}\n".encode("utf-8", "surrogateescape")
        for name in ("stdout", "stderr"):
            self.write(rank, name, b"\n" + line if (rank, name) in self._in_line else line)

    def left_out(self) -> list[str]:
        """Returns what could not be written, a text for each file."""
        return [text for file in self._files.values() if (text := file.left_out())]

    def close(self) -> None:
        """Closes the files, after the writer has ended."""
        for file in self._targets:
            file.close()
        self._targets.clear()
