"""Files that this user makes, also in folders where other users may write.

Another user may have put a link, a pipe or a file there first. Through a link this user would
overwrite another file, and a pipe would wait for a reader.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path


def make_file(path: Path) -> int:
    """Makes a file that only this user can read; returns a descriptor to write to.

    A regular file of this name is removed before. A child process does not inherit the descriptor.
    OSError: it cannot be made, or what is there is a link, a pipe, or of another user.
    """
    _check_replaceable(path)
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, 0o600)


def replace_file(path: Path, text: str) -> None:
    """Writes a file that only this user can read. Readers never see a part of it.

    OSError: it cannot be written, or what is there is no regular file.
    """
    _check_replaceable(path)
    # In a folder where others may write, too, nobody can foresee this name.
    part = path.with_name(f"{path.name}.{os.urandom(8).hex()}.part")
    try:
        with open(make_file(part), "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


def _check_replaceable(path: Path) -> None:
    """Raises OSError if a link, a pipe or a device is in a file's place: root could remove it."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(path.lstat().st_mode):
            raise OSError(f"{path} is no regular file")


def make_folder(path: Path) -> None:
    """Makes a folder, and those above it, unless it is there; OSError if it is a link."""
    path.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        raise OSError(f"{path} is a link, not a folder")


def check_owner(folder: Path, descriptor: int) -> None:
    """Raises PermissionError if another user owns a folder and could replace its files.

    `descriptor` is of a file that this process has made in it. Its owner is the owner of our files
    there, also on a file system that changes owners.
    """
    owner, ours = folder.lstat().st_uid, os.fstat(descriptor).st_uid
    if owner != ours:
        raise PermissionError(f"{folder} belongs to user {owner}, not to {ours}")
