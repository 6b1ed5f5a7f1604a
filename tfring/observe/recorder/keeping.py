"""Chooses where a rank puts its record, and removes records of old jobs."""

from __future__ import annotations

import contextlib
import logging
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tfring.observe.recorder import catalog
from tfring.observe.recorder.layout import EventType, RankState
from tfring.observe.recorder.places import (
    SUFFIX,
    check_own,
    default_folder,
    id_of,
    jobs,
    record_files,
)
from tfring.observe.recorder.processes import own_boot, process_state
from tfring.observe.recorder.reader import RecordError, read_header, read_record

_log = logging.getLogger("tfring")

# This many folders of jobs that failed or were killed stay.
KEPT_JOBS = 3
# This many old generations of a job stay until its launcher ends.
KEPT_GENERATIONS = 1
# A rank in another container counts as gone when its runtime was not awake for this long; it wakes
# every few seconds unless it is stopped.
_OVER_AFTER = 24 * 3600 * 1_000_000_000
# An empty folder this old is of a job whose ranks failed to start.
_START_SECONDS = 3600.0
# Old records are read this much later if nobody waits for it: first the ranks need the processor to
# connect.
_LATER_SECONDS = 5.0


def record_options(
    name: str,
    rank: int,
    size: int,
    given: str | None,
    first_of_host: bool,
    *,
    wait: bool = True,
) -> dict[str, str]:
    """Makes the folder for a rank's record and returns the options for the runtime's init.

    The records of a job with several ranks stay until its launcher on this host ends or, without a
    launcher, until its last rank leaves; these remove them. If the folder cannot be written, a
    warning says so, the options have no "path", and the record is in memory only.

    Args:
        name: Of the job and its generation, equal on all ranks: see places.py.
        rank: Ours.
        size: The number of ranks of the job.
        given: The user's folder, where records stay; None: the default folder.
        first_of_host: Whether this rank removes what earlier jobs left.
        wait: Whether to wait for that; with many records it takes a while.
    """
    options = {"job": name, "boot": own_boot()}
    base = Path(given) if given else default_folder()
    folder = base / name
    try:
        base.mkdir(mode=0o700, parents=given is not None, exist_ok=True)
        if given is None:
            check_own(base)
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        _log.warning(
            "rank %d keeps its record in its own memory, where no command can read it: %s. Set "
            "TFRING_RECORD_DIR to a folder that this user can write",
            rank,
            error,
        )
        return options
    if first_of_host:
        _begin(name, base, wait=wait)
    options["path"] = str(folder.absolute() / f"rank-{rank}{SUFFIX}")
    if size > 1 or given is not None or launched(id_of(name)):
        options["keep"] = "1"
    return options


def launched(job: str) -> bool:
    """Tells whether a launcher on this host runs the job and explains it at its end."""
    entry = catalog.find_note(job)
    return entry is not None and entry.launched and entry.lives


def remove_job(job: str) -> None:
    """Removes the records of a job whose ranks have ended."""
    for folder in jobs():
        if id_of(folder.name) == job and is_over(folder):
            shutil.rmtree(folder, ignore_errors=True)


def throw_away(own: str) -> None:
    """Removes the records of jobs that are over, except for a few of the newest.

    Records that a launcher keeps are left to the launcher and its ranks, which pass their folder's
    name as `own`; "": none.
    """
    over = [folder for folder in jobs() if folder.name != own and is_over(folder)]
    generations = [folder for folder in over if id_of(folder.name) == id_of(own)]
    if not launched(id_of(own)):
        generations = []
    others = [f for f in over if f not in generations and not launched(id_of(f.name))]
    for folder in generations[KEPT_GENERATIONS:] + others[KEPT_JOBS:]:
        shutil.rmtree(folder, ignore_errors=True)
    for folder in default_folder().iterdir():
        with contextlib.suppress(OSError):
            if folder.name != own and time.time() - folder.stat().st_mtime > _START_SECONDS:
                folder.rmdir()  # if it is empty
    catalog.remove_old()


def _begin(name: str, base: Path, *, wait: bool) -> None:
    """Notes the job, and removes old records."""
    with contextlib.suppress(OSError):
        catalog.note_begin(id_of(name), sys.orig_argv, base, launched=False)
    if wait:
        _try_to_throw_away(name, 0.0)
    else:
        late = (name, _LATER_SECONDS)
        threading.Thread(target=_try_to_throw_away, args=late, daemon=True).start()


def _try_to_throw_away(own: str, seconds: float) -> None:
    time.sleep(seconds)
    with contextlib.suppress(OSError):
        throw_away(own)


def is_over(folder: Path) -> bool:
    """Tells whether each rank's process is gone or has left this job."""
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
    """Whether the rank has shut down; its process may start another job."""
    if header["state"] == RankState.FAILED:
        return bool((read_record(path).raw_events["type"] == EventType.SHUTDOWN).any())
    return bool(header["state"] == RankState.LEFT)
