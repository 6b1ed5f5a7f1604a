"""Starting and stopping the timeline of this process, and making the file at its end.

While it is on, a thread of every rank drains its own record into a spool beside the file. At the
end the first rank of a host waits for the spools of the others and makes the file of all that are
there.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfring.recorder.own import own_path
from tfring.recorder.reader import RecordError, process_state, read_header
from tfring.timeline.drain import Drain
from tfring.timeline.draw import draw
from tfring.timeline.hops import HopSource
from tfring.timeline.spool import (
    SpoolWriter,
    facts_of,
    is_done,
    load_timeline,
    remove_spool,
    spool_path,
    spools_of,
)

_log = logging.getLogger("tfring")

# The record keeps some thousand entries, so this has to be a small part of what that many calls
# take.
_INTERVAL = 0.2
# So long the first rank of a host waits for the others to end their spools.
_OTHERS_SECONDS = 15.0
# A file of so many calls is made in some ten seconds, and the end of a job waits for it.
_MOST_CALLS = 50_000
_IDENTITY = ("job", "started_monotonic", "boot", "pid_space", "pid", "pid_started", "generation")


@dataclass(frozen=True)
class _Here:
    """Which rank this process is, and how large its spool may become."""

    rank: int
    local_rank: int
    megabytes: int
    take_hops: Callable[[bool], bytes]


class _Session:
    """A timeline that is on."""

    def __init__(self, path: Path, here: _Here, record: Path, mark_cycles: bool) -> None:
        """Begins to drain.

        Raises:
            OSError: The spool cannot be written, or the record not be read.
        """
        self.path, self.rank, self.first_of_host = path, here.rank, here.local_rank == 0
        header = read_header(record)
        self.facts: dict[str, Any] = {name: header[name] for name in _IDENTITY}
        self.facts |= {"record": str(record), "rank": self.rank, "mark_cycles": mark_cycles}
        self.facts["began"] = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        path.parent.mkdir(parents=True, exist_ok=True)
        if self.rank == 0:
            _remove_earlier(path, self.facts["job"])
        limit = here.megabytes << 20
        self._writer = SpoolWriter(spool_path(path, self.rank), limit, self.facts)
        self.hops = HopSource(here.take_hops)
        self._drain = Drain(record, self._writer, self.hops)
        self._drain.take()  # from here on what is there can be read after a crash
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tfring-timeline", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Ends draining; everything that the record has is in the spool then."""
        self.hops.end()
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._end.wait(_INTERVAL):
                self._drain.take()
            self._drain.take_all()
            self._writer.close(done=True)
        except OSError as error:
            _log.warning("the timeline of rank %d ends early: %s", self.rank, error)


class _State:
    """What this process's timeline is. Guarded by _lock; lives as long as the process."""

    here: _Here | None = None  # between init and shutdown
    session: _Session | None = None


_lock = threading.Lock()
_state = _State()


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Begins to record a timeline of this rank; see docs/timeline.md.

    Every rank that is to be in the file calls it, with the same name. Calls that ended before are
    not in it.

    Args:
        file_path: The file for Perfetto, which is there after `stop_timeline` or `shutdown`;
            compressed if its name ends in .gz. On other hosts than rank 0's the host's name is
            added to it.
        mark_cycles: Whether the file says when plans came from rank 0. There are no cycles here.

    Raises:
        ValueError: `init` was not called, or a timeline is on.
        RuntimeError: This rank keeps no record (TFRING_RECORD=0).
        OSError: The folder cannot be written.
    """
    with _lock:
        if _state.here is None:
            raise ValueError("a timeline is of a job: call init() before start_timeline()")
        if _state.session is not None:
            raise ValueError(
                f"a timeline is on already, and goes to {_state.session.path}: call "
                "stop_timeline() first"
            )
        record = own_path()
        if record is None:
            raise RuntimeError(
                "a timeline is made of the record of the rank, and this one keeps none in a file: "
                "unset TFRING_RECORD, or name a folder that can be written with TFRING_RECORD_DIR"
            )
        path = Path(os.path.abspath(os.fspath(file_path)))
        _state.session = _Session(path, _state.here, record, mark_cycles)


def stop_timeline() -> None:
    """Ends the timeline. The first rank of a host then makes the file, which may take seconds.

    Does nothing if none is on.

    Raises:
        OSError: The file cannot be written.
    """
    with _lock:
        session, _state.session = _state.session, None
    if session is None:
        return
    session.end()
    if session.first_of_host:
        make_file(session.path, session.rank, session.facts)


def attach(
    rank: int,
    local_rank: int,
    megabytes: int,
    timeline: str | None,
    mark_cycles: bool,
    take_hops: Callable[[bool], bytes],
) -> None:
    """This process has become a rank; starts the timeline that the environment asks for.

    Args:
        rank: Which one.
        local_rank: Its number on its host.
        megabytes: How large its spool may become.
        timeline: TFRING_TIMELINE; None: the program may call `start_timeline`.
        mark_cycles: TFRING_TIMELINE_MARK_CYCLES.
        take_hops: The binding's function.
    """
    with _lock:
        _state.here = _Here(rank, local_rank, megabytes, take_hops)
    if timeline is None:
        return
    try:
        start_timeline(timeline, mark_cycles)
    except (OSError, RuntimeError) as error:
        _log.warning("there will be no timeline of rank %d: %s", rank, error)


def about_to_leave() -> None:
    """The runtime of this process is about to end, and what it has besides the record is lost."""
    with _lock:
        session = _state.session
    if session is not None:
        session.hops.end()


def detach() -> None:
    """This process is no rank any more; ends the timeline if one is on. Never raises."""
    with _lock:
        _state.here = None
    try:
        stop_timeline()
    except (OSError, ValueError) as error:
        _log.warning("the timeline could not be written: %s", error)


def make_file(path: Path, rank: int, facts: dict[str, Any]) -> None:
    """Makes the file of the spools of a job that are there.

    Args:
        path: The file.
        rank: Ours, the lowest of this host.
        facts: Of our spool.

    Raises:
        OSError: It cannot be written.
    """
    spools = {int(one["rank"]): spool for spool, one in _of_job(path, facts)}
    if 0 in spools and rank != 0:
        return  # a folder that hosts share: rank 0 makes the file of all
    _wait_for(list(spools.values()))
    target = (
        path if rank == 0 else path.with_name(f"{path.stem}.{os.uname().nodename}{path.suffix}")
    )
    found = load_timeline(list(spools.values()), _MOST_CALLS)
    job = found.job
    draw(job, bool(facts["mark_cycles"]), found.hops).write(target)
    if found.left_out:
        _warn_of_more(target, found.left_out)
    if job.missing:
        _log.warning(
            "%s has no timeline of %d of %d ranks; where they are on other hosts, bring together "
            "the files %s.rank-*.spool of all and run `tfring timeline` on them",
            *(target, len(job.missing), job.size, path.name),
        )
    if not found.left_out and not job.missing:
        _remove(list(spools.values()))


def finish(path: Path) -> bool:
    """Makes the file of what ranks have left that did not come to it, as they were killed.

    Args:
        path: The file.

    Returns:
        Whether there was anything left.

    Raises:
        OSError: It cannot be written.
    """
    spools = spools_of(path)
    if path.exists() or not spools:
        return False
    found = load_timeline(spools, _MOST_CALLS)
    mark_cycles = any(facts_of(spool)["mark_cycles"] for spool in spools)
    draw(found.job, mark_cycles, found.hops).write(path)
    if found.left_out:
        _warn_of_more(path, found.left_out)
    if not found.left_out and not found.job.missing:
        _remove(spools)
    return True


def _remove(spools: list[Path]) -> None:
    """Removes spools, but for those that ranks still write."""
    for spool in spools:
        if is_done(spool) or process_state(facts_of(spool)) == "gone":
            remove_spool(spool)


def _remove_earlier(path: Path, job: str) -> None:
    """Removes what jobs before have left where ours writes."""
    path.unlink(missing_ok=True)
    for spool in spools_of(path):
        with contextlib.suppress(OSError, RecordError):
            if facts_of(spool)["job"] != job:
                remove_spool(spool)


def _warn_of_more(path: Path, left_out: int) -> None:
    _log.warning(
        "%s has the newest calls; %d more are in %s.rank-*.spool, and `tfring timeline %s -o FILE` "
        "makes a file of all, which may take minutes",
        *(path, left_out, path.name, path),
    )


def _of_job(path: Path, facts: dict[str, Any]) -> list[tuple[Path, dict[str, Any]]]:
    """Returns the spools of the present job; others may lie there from before."""
    found = []
    for spool in spools_of(path):
        try:
            one = facts_of(spool)
        except (OSError, RecordError):
            continue
        if (one["job"], one["generation"]) == (facts["job"], facts["generation"]):
            found.append((spool, one))
    return found


def _wait_for(spools: list[Path]) -> None:
    """Waits until ranks that live have ended their spools, or some time is over."""
    limit = time.monotonic() + _OTHERS_SECONDS
    for spool in spools:
        facts = facts_of(spool)
        while not is_done(spool) and process_state(facts) != "gone" and time.monotonic() < limit:
            time.sleep(0.02)
