"""Where the records of jobs lie: a folder for each job, in it a file for each rank of this host."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import stat
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tfring.recorder.layout import EventType, RankState
from tfring.recorder.reader import RecordError, own_boot, process_state, read_header, read_rings

_log = logging.getLogger("tfring")

SUFFIX = ".record"
# Files in it are in memory. On a disk they would make the ranks wait for that disk now and then.
MEMORY = Path("/dev/shm")
# Where systemd makes a folder in memory for each user.
USERS = Path("/run/user")
# Of jobs that are over, so many folders stay: those that failed or were killed.
KEPT_JOBS = 3
# Of those that one `tfring run` has had, also of those that ended well.
KEPT_IN_RUN = 1
# Of a rank in another container nothing is known but when its runtime was last awake, which it is
# every few seconds unless it is stopped.
_OVER_AFTER = 24 * 3600 * 1_000_000_000
# The ranks of a job have their records long before its folder is so old, unless they failed to.
_START_SECONDS = 3600.0
# Where nobody waits for it, old records are read so much later: then the ranks have connected, for
# which they need the processor.
_LATER_SECONDS = 5.0
# How folders begin that `tfring run` makes: in them are those of the jobs. Its process id follows.
_RUN = "run-"


def record_options(
    job: str, rank: int, given: str | None, first_of_host: bool, *, wait: bool = True
) -> dict[str, str]:
    """Returns what the runtime gets to know of its record, and makes the folder for it.

    Args:
        job: The job's number, equal on all its ranks.
        rank: Ours.
        given: The folder that the user wants, where records stay, or that `tfring run` has made,
            where they stay until it ends; None: `default_folder`, where those of jobs that ended
            well are removed.
        first_of_host: Whether this rank throws away what jobs before have left behind.
        wait: Whether to wait until that is done: with many records it takes a while.

    Returns:
        For the runtime's init. Without "path" the record is in memory only, because the folder
        cannot be written; a warning says so.
    """
    options = {"job": job, "boot": own_boot()}
    base = Path(given) if given else default_folder()
    folder = base / job
    try:
        base.mkdir(mode=0o700, parents=given is not None, exist_ok=True)
        if given is None:
            _check_own(base)
        folder.mkdir(mode=0o700, exist_ok=True)
        if first_of_host and (given is None or is_run_folder(base)):
            old = (base, folder, KEPT_JOBS if given is None else KEPT_IN_RUN)
            if wait:
                _throw_away(*old)
            else:
                threading.Thread(target=_try_to_throw_away, args=old, daemon=True).start()
    except OSError as error:
        _log.warning(
            "rank %d keeps its record in its own memory, where no command can read it: %s. Set "
            "TFRING_RECORD_DIR to a folder that this user can write",
            rank,
            error,
        )
        return options
    options["path"] = str(folder.absolute() / f"rank-{rank}{SUFFIX}")
    if given is not None:
        options["keep"] = "1"
    return options


def make_run_folder() -> Path | None:
    """Makes a folder for the records of what `tfring run` starts, which removes it.

    Returns:
        A folder below `default_folder`, or None if that cannot be written.
    """
    base = default_folder()
    try:
        base.mkdir(mode=0o700, exist_ok=True)
        _check_own(base)
        folder = Path(tempfile.mkdtemp(prefix=f"{_RUN}{os.getpid()}-", dir=base))
    except OSError:
        return None
    _throw_away(base, folder, KEPT_JOBS)
    return folder


def is_run_folder(path: Path) -> bool:
    """Tells whether a folder is one that `tfring run` has made."""
    return path.parent in _places() and path.name.startswith(_RUN)


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
    for folder in folders[:]:
        if folder.name.startswith(_RUN):
            folders += _inside(folder)
    found = [one for one in folders if any(path.suffix == SUFFIX for path in _inside(one))]
    return sorted(found, key=_made, reverse=True)


def record_files(folder: Path) -> list[Path]:
    """Returns the records in the folder of a job, by rank."""
    return sorted(folder.glob(f"rank-*{SUFFIX}"), key=lambda path: (len(path.name), path.name))


def end_job(path: str) -> None:
    """Removes the folder of a job after its last record has been removed."""
    with contextlib.suppress(OSError):
        Path(path).parent.rmdir()


def _inside(folder: Path) -> list[Path]:
    """Returns what is in a folder; nothing if it is none, or has been removed meanwhile."""
    with contextlib.suppress(OSError):
        return list(folder.iterdir())
    return []


def _made(folder: Path) -> float:
    with contextlib.suppress(OSError):
        return folder.stat().st_mtime
    return 0.0


def _check_own(base: Path) -> None:
    """Raises OSError if somebody else could have made the folder, or can write to it."""
    found = base.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{base} belongs to somebody else")
    if found.st_mode & 0o077:
        base.chmod(0o700)


def _throw_away(base: Path, own: Path, kept: int) -> None:
    """Removes folders of jobs that are over, but for so many of the newest.

    What is in the folder of a `tfring run` that goes on is left to that.
    """
    mine = [one for one in jobs(base) if one.parent == base or not _run_lives(one.parent)]
    over = [folder for folder in mine if folder != own and _is_over(folder)]
    for folder in over[kept:]:
        shutil.rmtree(folder, ignore_errors=True)
    for folder in base.iterdir():
        if folder == own or _run_lives(folder):
            continue
        with contextlib.suppress(OSError):
            started = time.time() - folder.stat().st_mtime > _START_SECONDS
            if started or folder.name.startswith(_RUN):
                folder.rmdir()  # if it is empty; in that of a run a later rank makes it anew


def _run_lives(folder: Path) -> bool:
    """Whether a folder is that of a `tfring run` that has not ended: it removes the folder."""
    pid = folder.name.removeprefix(_RUN).partition("-")[0]
    return folder.name.startswith(_RUN) and pid.isdigit() and Path(f"/proc/{pid}").exists()


def _try_to_throw_away(base: Path, own: Path, kept: int) -> None:
    time.sleep(_LATER_SECONDS)
    with contextlib.suppress(OSError):
        _throw_away(base, own, kept)


def _is_over(folder: Path) -> bool:
    """Whether every rank's process is gone, or has left this job."""
    for path in record_files(folder):
        try:
            header = read_header(path)
            # One of another boot is from before the machine started.
            if header["boot"] != own_boot():
                continue
            state = process_state(header)
            asleep = time.clock_gettime_ns(time.CLOCK_MONOTONIC) - header["awake"]
            lives = state in ("running", "stopped") or (state is None and asleep < _OVER_AFTER)
            if lives and not _has_left(path, header):
                return False
        except (OSError, RecordError):
            continue
    return True


def _has_left(path: Path, header: dict[str, Any]) -> bool:
    """Whether the rank has shut down; its process may go on with another job."""
    if header["state"] == RankState.FAILED:
        return bool((read_rings(path).events["type"] == EventType.SHUTDOWN).any())
    return bool(header["state"] == RankState.LEFT)
