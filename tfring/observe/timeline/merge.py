"""Makes the file of a timeline from the spools of ranks, and removes what earlier jobs left."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from pathlib import Path
from typing import Any

from tfring.observe.recorder.job import JobRecords
from tfring.observe.recorder.processes import process_state
from tfring.observe.recorder.reader import RecordError, read_header
from tfring.observe.timeline.draw import draw
from tfring.observe.timeline.spool import find_spools, is_done, load_timeline, spool_path
from tfring.observe.timeline.trace import replaced_file

_log = logging.getLogger("tfring")

# The first rank of a host waits this long for the others to end their spools.
_OTHERS_SECONDS = 15.0
# A file of this many calls takes about ten seconds, and the end of a job waits for it.
_MOST_CALLS = 50_000


def find_target(path: Path, rank: int) -> Path:
    """Returns the file that the first rank of a host makes."""
    if rank == 0:
        return path
    return path.with_name(f"{path.stem}.{os.uname().nodename}{path.suffix}")


def remove_spools_above(path: Path, size: int) -> None:
    """Removes spools of an earlier job with more ranks than `size`; each rank replaces its own."""
    for spool, header in _headers(path):
        if header["rank"] >= size:
            spool.unlink(missing_ok=True)


def make_file(path: Path, header: dict[str, Any]) -> None:
    """Makes the file from the spools of a job.

    Args:
        path: The file of the timeline.
        header: Of our record; our rank is the lowest of this host.

    Raises:
        RecordError: Our spool is gone.
        OSError: It cannot be written.
    """
    rank = int(header["rank"])
    spools = _of_job(path, header)
    if rank != 0 and (0 in spools or rank not in spools):
        return  # a folder that hosts share: rank 0 makes the file of all, or has made it
    if rank not in spools:
        raise RecordError(
            f"{spool_path(path, rank)} is not the file that rank {rank} wrote: another job uses the"
            " same name for its timeline, or the file was removed"
        )
    _wait_for(list(spools.values()))
    target = find_target(path, rank)
    job = _write(target, list(spools.values()))
    if job.missing:
        _log.warning(
            "%s lacks %d of %d ranks. If they are on other hosts, copy all files %s.rank-*.spool "
            "into one folder and run `tfring timeline` on them",
            target,
            len(job.missing),
            job.size,
            path.name,
        )


def clear(path: Path) -> None:
    """Removes the file and the spools that earlier jobs left.

    Raises:
        OSError: The file cannot be removed.
    """
    replaced_file(path).unlink(missing_ok=True)
    for spool, header in _headers(path):
        if process_state(header) not in ("running", "stopped"):
            spool.unlink(missing_ok=True)


def finish(path: Path) -> bool:
    """Makes the file from spools of ranks that were killed; tells whether there were any.

    Of several jobs of one launcher it takes the newest. `clear` has removed the file of an earlier
    job.

    Raises:
        OSError: It cannot be written.
    """
    headers = [header for _, header in _headers(path)]
    if path.exists() or not headers:
        return False
    newest = max(headers, key=lambda header: int(header["started_monotonic"]))
    _write(path, list(_of_job(path, newest).values()))
    return True


def _write(path: Path, spools: list[Path]) -> JobRecords:
    """Writes the file, and removes the spools if everything is in it; not those still written."""
    found = load_timeline(spools, _MOST_CALLS)
    draw(found.job, found.phases).write(path)
    if found.left_out:
        _log.warning(
            "%s has the newest calls; %d more are in %s.rank-*.spool. `tfring timeline %s -o FILE` "
            "writes all of them, which may take minutes",
            path,
            found.left_out,
            path.name,
            path,
        )
    elif not found.job.missing:
        for spool in spools:
            if is_done(spool) or process_state(read_header(spool)) == "gone":
                spool.unlink(missing_ok=True)
    return found.job


def _of_job(path: Path, own: dict[str, Any]) -> dict[int, Path]:
    """Returns the spools of the present job by rank; others may lie there from before."""
    return {
        int(header["rank"]): spool
        for spool, header in _headers(path)
        if (header["job"], header["generation"]) == (own["job"], own["generation"])
    }


def _headers(path: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Returns the spools of a timeline, and their headers; files that are none are left out."""
    found = []
    for spool in find_spools(path):
        with contextlib.suppress(OSError, RecordError):
            found.append((spool, read_header(spool)))
    return found


def _wait_for(spools: list[Path]) -> None:
    """Waits until live ranks have ended their spools, at most _OTHERS_SECONDS."""
    limit = time.monotonic() + _OTHERS_SECONDS
    for spool in spools:
        header = read_header(spool)
        while not is_done(spool) and process_state(header) != "gone" and time.monotonic() < limit:
            time.sleep(0.02)
