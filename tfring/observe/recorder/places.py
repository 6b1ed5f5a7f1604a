"""Where the records of jobs lie: a folder for each generation, with a file for each rank here.

The folder's name is the job's id and what tells its generations apart; a job that no launcher has
named has only the latter for an id.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from pathlib import Path

SUFFIX = ".record"
# Files in it are in memory. On a disk they would make the ranks wait for that disk now and then.
MEMORY = Path("/dev/shm")
# Where systemd makes a folder in memory for each user.
USERS = Path("/run/user")
_NAME = re.compile(r"(.+)-[0-9a-f]{12}")
# Ids that tfring has made; those of jobs on Ray begin with its name.
_MADE = re.compile(r"((?:ray-)?[0-9a-f]{6})[0-9a-f]{6,}")


def id_of(name: str) -> str:
    """Returns the id of a job from the name of one of its folders, which its records have, too."""
    match = _NAME.fullmatch(name)
    return match[1] if match else name


def short(job: str) -> str:
    """Returns what people call a job by: of an id that tfring has made the first six letters."""
    match = _MADE.fullmatch(job)
    return match[1] if match else job


def default_folder() -> Path:
    """Returns where records are unless TFRING_RECORD_DIR says otherwise.

    Somebody else may have made the folder of this name in shared memory. Then it is one that the
    system gives to this user alone, if there is one.
    """
    shared, private = _places()
    with contextlib.suppress(OSError):
        if shared.lstat().st_uid != os.getuid() and private.parent.stat().st_uid == os.getuid():
            return private
    return shared


def _places() -> tuple[Path, Path]:
    user = os.getuid()
    return MEMORY / f"tfring-{user}", USERS / str(user) / "tfring"


def jobs(base: Path | None = None) -> list[Path]:
    """Returns the folders of jobs that have records on this host, the newest first.

    Args:
        base: Where to look; None: where records are by default, but in no folder of somebody else.
    """
    folders = _inside(base) if base is not None else []
    for place in _places() if base is None else ():
        with contextlib.suppress(OSError):
            if place.lstat().st_uid == os.getuid():
                folders += _inside(place)
    found = [one for one in folders if any(path.suffix == SUFFIX for path in _inside(one))]
    return sorted(found, key=_made, reverse=True)


def record_files(folder: Path) -> list[Path]:
    """Returns the records in the folder of a job, by rank."""
    return sorted(folder.glob(f"rank-*{SUFFIX}"), key=lambda path: (len(path.name), path.name))


def _inside(folder: Path) -> list[Path]:
    """Returns what is in a folder; nothing if it is none, or has been removed meanwhile."""
    with contextlib.suppress(OSError):
        return list(folder.iterdir())
    return []


def _made(folder: Path) -> float:
    with contextlib.suppress(OSError):
        return folder.stat().st_mtime
    return 0.0


def check_own(base: Path) -> None:
    """Raises OSError if somebody else could have made the folder, or can write to it."""
    found = base.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{base} belongs to somebody else")
    if found.st_mode & 0o077:
        base.chmod(0o700)
