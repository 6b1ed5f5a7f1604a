"""The files of --output-filename: all that each rank writes, in files of its own."""

from __future__ import annotations

import os
from pathlib import Path

from tfring.job.security.files import check_owner, make_file, make_folder
from tfring.launch.output.writer import BackgroundWriter, Descriptor, QueuedFile


class RankFiles:
    """The files of all ranks, FOLDER/rank.N/stdout and stderr.

    They belong to this user, nobody else can read them, and what was there is overwritten. The
    number of ranks gives the width of the folders' names.
    """

    def __init__(self, writer: BackgroundWriter, folder: Path, ranks: int) -> None:
        self._writer = writer
        self._folder = folder
        self._width = len(str(ranks - 1))
        self._files: dict[tuple[int, str], QueuedFile] = {}
        self._in_line: set[tuple[int, str]] = set()  # of those that do not end with a whole line
        self._descriptors: list[int] = []

    def add(self, rank: int, called: str = "") -> None:
        """Makes the files of a rank, in rank.N or a folder that is called otherwise.

        OSError: they cannot be made, or the folder belongs to another user.
        """
        folder = self._folder / (called or f"rank.{rank:0{self._width}d}")
        make_folder(folder)
        for name in ("stdout", "stderr"):
            path = folder / name
            fd = make_file(path)
            self._descriptors.append(fd)
            check_owner(folder, fd)
            self._files[rank, name] = QueuedFile(self._writer, Descriptor(fd), str(path))

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
        for fd in self._descriptors:
            os.close(fd)
        self._descriptors.clear()
