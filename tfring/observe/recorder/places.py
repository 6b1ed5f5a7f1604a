"""The folders of records: one for each generation of a job, with one file per rank of this host.

A folder's name is the id of the job and a suffix for the generation. If no launcher has named the
job, the suffix is its id.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from pathlib import Path

SUFFIX = ".record"
# In memory: ranks that write to files on a disk wait for the disk now and then.
MEMORY = Path("/dev/shm")
_NAME = re.compile(r"(.+)-[0-9a-f]{12}")
# Ids that tfring has made; those of jobs on Ray begin with its name.
_MADE = re.compile(r"((?:ray-)?[0-9a-f]{6})[0-9a-f]{6,}")


def id_of(name: str) -> str:
    """Returns the id of a job from the name of one of its folders."""
    match = _NAME.fullmatch(name)
    return match[1] if match else name


def short(job: str) -> str:
    """Returns the id for people: the first six letters of an id that tfring made."""
    match = _MADE.fullmatch(job)
    return match[1] if match else job


def default_folder() -> Path:
    """Returns the folder for records if TFRING_RECORD_DIR is not set."""
    return MEMORY / f"tfring-{os.getuid()}"


def jobs(base: Path | None = None) -> list[Path]:
    """Returns the folders with records on this host, the newest first.

    Args:
        base: Where to look; None: the default folder, if this user owns it.
    """
    if base is None:
        base = default_folder()
        with contextlib.suppress(OSError):
            if base.lstat().st_uid != os.getuid():
                return []
    found = [one for one in _inside(base) if any(path.suffix == SUFFIX for path in _inside(one))]
    return sorted(found, key=_made, reverse=True)


def record_files(folder: Path) -> list[Path]:
    """Returns the records in the folder of a job, by rank."""
    return sorted(folder.glob(f"rank-*{SUFFIX}"), key=lambda path: (len(path.name), path.name))


def _inside(folder: Path) -> list[Path]:
    """Returns the paths in a folder; [] if it does not exist."""
    with contextlib.suppress(OSError):
        return list(folder.iterdir())
    return []


def _made(folder: Path) -> float:
    with contextlib.suppress(OSError):
        return folder.stat().st_mtime
    return 0.0


def check_own(base: Path) -> None:
    """Raises OSError if another user owns the folder; takes away the permissions of others."""
    found = base.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{base} belongs to another user")
    if found.st_mode & 0o077:
        base.chmod(0o700)
